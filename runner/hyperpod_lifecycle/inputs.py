# SPDX-License-Identifier: Apache-2.0
"""Find the files that a command reads, and write the inventory source of a run.

Precedence: command line, the inventory's ``hyperpod.yml``, HyperPod's own paths.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hyperpod_lifecycle import users
from hyperpod_lifecycle.errors import InputError, Problem
from hyperpod_lifecycle.inventory import ARCHITECTURES, Image
from hyperpod_lifecycle.paths import Paths, write_private
from hyperpod_lifecycle.problems import did_you_mean, known, nearest, show
from hyperpod_lifecycle.variable_files import VARIABLE_FOLDERS, check_yaml, variable_files

if TYPE_CHECKING:
    from hyperpod_lifecycle.cluster import Cluster

PLUGIN = "hyperpod.lifecycle.hyperpod"
SOURCE_FILE = "hyperpod.yml"
#: The options of the inventory plugin; a test compares them with its documentation.
OPTIONS = (
    "plugin",
    "resource_config",
    "provisioning_parameters",
    "shared_users",
    "node",
    "all_members",
    "connection",
    "python_interpreter",
    *(each.name for each in fields(Image)),
)
#: Options that name files of the user; relative paths start at the directory of the inventory's hyperpod.yml.
FILES = ("resource_config", "provisioning_parameters", "shared_users")
#: Options that name paths on nodes.
NODE_PATHS = ("python_interpreter", "slurm_prefix", "slurm_config_dir")
CONNECTIONS = {"warm": "hyperpod.lifecycle.warm", "local": "local"}


@dataclass(frozen=True)
class Inputs:
    """The input files of one command, with absolute paths."""

    resource_config: Path
    provisioning_parameters: Path | None
    inventory: Path | None
    shared_users: Path  #: the list of users, or a directory that may contain it
    options: Mapping[str, Any] = field(default_factory=dict)  #: content of the inventory's hyperpod.yml
    notes: tuple[str, ...] = ()

    @property
    def node(self) -> str | None:
        """The instance name set in the inventory's hyperpod.yml, or None."""
        name = self.options.get("node")
        return str(name) if name else None

    def write(self, directory: Path, node: str, connection: str | None) -> Path:
        """Write an inventory source for `node` to `directory`, link the user's variables there; return its path."""
        directory.mkdir(mode=0o700)
        options = {
            **self.options,
            "plugin": PLUGIN,
            "resource_config": str(self.resource_config),
            # None means the API-driven form: the plugin must not fall back to its default path.
            "provisioning_parameters": str(self.provisioning_parameters or directory / "absent"),
            "shared_users": str(self.shared_users),
            "node": node,
            "all_members": False,  # a run configures the machine it runs on
        }
        if connection:
            options["connection"] = CONNECTIONS[connection]
        path = directory / SOURCE_FILE
        write_private(path, json.dumps(options, indent=1))  # JSON is YAML
        for name in VARIABLE_FOLDERS:
            if self.inventory and (self.inventory / name).is_dir():
                (directory / name).symlink_to(self.inventory / name)
        return path

    def check_names(self, cluster: Cluster) -> Iterator[str]:
        """Yield a note for each variable file without a group or host in this cluster; Ansible ignores such files.

        Raises InputError for names that cannot exist in any cluster.
        """
        from hyperpod_lifecycle.inventory import GroupNames

        groups = GroupNames(cluster).all
        known_names = {"group_vars": groups, "host_vars": [instance.name for instance in cluster.instances]}
        problems = []
        for path in variable_files(self.inventory) if self.inventory else ():
            folder, entry = path.relative_to(self.inventory or path).parts[:2]
            name = Path(entry).stem if (self.inventory or path) / folder / entry == path else entry
            if name.startswith(".") or name in known_names[folder]:
                continue
            near = did_you_mean(nearest(name, known_names[folder]))
            if folder == "host_vars" or re.fullmatch(r"(instance_group|partition|instance_type)_\w+", name):
                yield f"{path}: not used, nothing in this cluster is named {name}; {near}".rstrip("; ")
            else:
                remedy = f"{near}Known groups: {known(groups)}"
                problems.append(Problem(str(path), "", f"no group is named {show(name)}", remedy))
        if problems:
            raise InputError(problems)

    def keep(self, paths: Paths) -> None:
        """Copy HyperPod's files to `etc_dir` for later runs, because the upload directory may be deleted."""
        paths.etc_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, path in (
            ("resource_config.json", self.resource_config),
            ("provisioning_parameters.json", self.provisioning_parameters),
        ):
            copy = paths.etc_dir / name
            if path and path != copy:
                content = path.read_bytes()
                if not copy.is_file() or copy.read_bytes() != content:
                    write_private(copy, content)
            elif not path:  # API-driven form now
                copy.unlink(missing_ok=True)

    def fingerprints(self) -> dict[str, str]:
        """Return a digest of every input file, which `report` compares with the current files."""
        files = [self.resource_config]
        files += [self.provisioning_parameters] if self.provisioning_parameters else []
        files += users.files(self.shared_users)[:1]
        if self.inventory:
            files += [self.inventory / SOURCE_FILE, *variable_files(self.inventory)]
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files if path.is_file()}


def resolve(
    paths: Paths,
    resource_config: Path | None = None,
    provisioning_parameters: Path | None = None,
    inventory: Path | None = None,
    checkout: Path | None = None,
) -> Inputs:
    """Find the input files; `checkout` is the source tree, if this package runs from one.

    Raises InputError if a file named by the user does not exist, or the inventory's YAML is invalid.
    """
    if inventory is None:
        candidates = [paths.inventory] + ([checkout / "inventory"] if checkout else [])
        inventory = next((path for path in candidates if _exists(path)), None)
    elif not inventory.is_dir():
        raise _problem(inventory, "", "no such directory", "name a directory with hyperpod.yml and group_vars in it")
    # Ansible runs in another working directory.
    inventory = inventory.absolute() if inventory else None
    options = _options(inventory / SOURCE_FILE) if inventory else {}
    if inventory:
        check_yaml(variable_files(inventory), variables=True)
    notes: list[str] = []
    config = _pick("resource_config", resource_config, options, paths, notes)
    # With --resource-config alone, as in on_create.sh in the API-driven form, do not use an old copy of the other file.
    copies = resource_config is None
    parameters = _pick("provisioning_parameters", provisioning_parameters, options, paths, notes, copies=copies)
    return Inputs(
        resource_config=config or paths.platform_dir / "resource_config.json",
        provisioning_parameters=parameters,
        inventory=inventory,
        shared_users=_shared_users(inventory, options, paths),
        options=options,
        notes=tuple(notes),
    )


def _pick(
    key: str, given: Path | None, options: Mapping[str, Any], paths: Paths, notes: list[str], *, copies: bool = True
) -> Path | None:
    """Return the file for `key`: given, configured, HyperPod's, or the copy of the last run; None if there is none."""
    if given:
        if not _exists(given):
            raise _problem(given, "", "no such file", f"correct --{key.replace('_', '-')}")
        return given.absolute()
    platform = paths.platform_dir / f"{key}.json"
    first = Path(options.get(key) or platform)
    if _exists(first):
        return first
    copy = paths.etc_dir / f"{key}.json"
    if copies and _exists(copy):
        notes.append(f"{first} does not exist; used the copy of the last run, {copy}")
        return copy
    if first != platform:
        raise _problem(first, "", "no such file", f"correct {key} in the inventory's {SOURCE_FILE}")
    return None


def _shared_users(inventory: Path | None, options: Mapping[str, Any], paths: Paths) -> Path:
    """Return the configured path, else the inventory's parent if it has a list, else `etc_dir`."""
    if options.get("shared_users"):
        return Path(options["shared_users"])
    beside = inventory.parent if inventory else paths.etc_dir
    return beside if users.files(beside) else paths.etc_dir


def _options(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    import yaml

    check_yaml([path])
    try:
        options = yaml.safe_load(path.read_bytes())
    except yaml.MarkedYAMLError as error:  # a tag
        where = f"line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise _problem(path, where, str(error.problem), "write only plain values there") from None
    if not isinstance(options, dict):
        raise _problem(path, "", "not a mapping", f"start it with: plugin: {PLUGIN}")
    if options.get("plugin") != PLUGIN:
        raise _problem(path, "plugin", f"found {options.get('plugin')!r}", f"it must be {PLUGIN}")
    unknown = [str(key) for key in options if key not in OPTIONS]
    if unknown:
        found = f"no option is named {known(unknown)}"
        raise _problem(path, unknown[0], found, f"{did_you_mean(nearest(unknown[0], OPTIONS))}Known: {known(OPTIONS)}")
    if options.get("connection", "local") not in CONNECTIONS.values():
        found = f"found {options['connection']!r}"
        raise _problem(path, "connection", found, f"it must be one of: {known(CONNECTIONS.values())}")
    for key in (*FILES, *NODE_PATHS, "node"):
        if not isinstance(options.get(key, ""), str):
            raise _problem(path, key, f"found {options[key]!r}", "it must be a string")
    for key in NODE_PATHS:
        if options.get(key, "/").lstrip()[:1] not in ("/", ""):
            raise _problem(path, key, f"found {options[key]!r}", "it must be an absolute path on the nodes")
    for each in fields(Image):
        value = options.get(each.name, each.default)
        if type(value) is not type(each.default):
            wanted = "a whole number" if isinstance(each.default, int) else "a string"
            raise _problem(path, each.name, f"found {value!r}", f"it must be {wanted}")
    if options.get("architecture", "") not in ("", *ARCHITECTURES.values()):
        found = f"found {options['architecture']!r}"
        raise _problem(path, "architecture", found, f"it must be one of: {known(ARCHITECTURES.values())}")
    return {**options, **{key: str(path.parent / options[key]) for key in FILES if options.get(key)}}


def _exists(path: Path) -> bool:
    # Path.exists raises if a parent is not readable, as /etc/hyperpod-lifecycle for users other than root.
    return os.path.exists(path)  # noqa: PTH110


def _problem(path: Path, key: str, found: str, remedy: str) -> InputError:
    return InputError([Problem(str(path), key, found, remedy)])
