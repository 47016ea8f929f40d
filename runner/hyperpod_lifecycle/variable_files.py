# SPDX-License-Identifier: Apache-2.0
"""Find and check the files with the user's variables, and find the file that sets a variable."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from hyperpod_lifecycle.errors import InputError, Problem

#: Directories of variables in an inventory directory.
VARIABLE_FOLDERS = ("group_vars", "host_vars")

READ_ONLY = "read-only: set by HyperPod's files"

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_YAML_TAG = "tag:yaml.org,2002:"


def variable_files(inventory: Path) -> list[Path]:
    """Return the files of variables that Ansible reads, with the user's own path if a run has linked the directory."""
    folders = (inventory / name for name in VARIABLE_FOLDERS)
    named = (inventory / folder.readlink() if folder.is_symlink() else folder for folder in folders)
    found = (path for folder in named for path in sorted(folder.rglob("*")))
    visible = (path for path in found if not path.name.startswith("."))  # Ansible ignores hidden files
    return [path for path in visible if path.is_file() and path.suffix in ("", ".yml", ".yaml", ".json")]


def origin(name: str, variables: Mapping[str, Any]) -> str:
    """Return the files of the inventory that set `name`, for a message; `variables` are Ansible's for the host."""
    folder = Path(str(variables.get("inventory_dir") or ""))
    line = re.compile(rf"^[\"']?{re.escape(name)}[\"']?[ \t]*:", re.MULTILINE)
    found = [
        str(path) for path in variable_files(folder) if line.search(path.read_text(encoding="utf-8", errors="replace"))
    ]
    return " and ".join(found) or "-e or the inventory"


def check_yaml(files: Iterable[Path], variables: bool = False) -> None:
    """Raise InputError with all YAML problems of `files`; with `variables`, also check that they contain variables.

    Ansible stops at the first problem without naming the file, and ignores some of them.
    """
    problems: list[Problem] = []
    for path in files:
        try:
            content = path.read_bytes()
            document = yaml.compose(content, Loader=_LOADER)
            if document is not None:
                problems += _node_problems(path, document, set())
            if variables:
                problems += _variable_problems(path, content, document)
        except yaml.MarkedYAMLError as error:
            where = _place(error.problem_mark) if error.problem_mark else ""
            problems.append(Problem(str(path), where, str(error.problem), "correct the YAML"))
        except yaml.YAMLError as error:
            problems.append(Problem(str(path), "", " ".join(str(error).split()), "correct the YAML"))
        except RecursionError:
            problems.append(Problem(str(path), "", "nested too deeply", "correct the YAML"))
    if problems:
        raise InputError(problems)


def _place(mark: Any) -> str:
    return f"line {mark.line + 1} column {mark.column + 1}"


def _node_problems(path: Path, node: Any, seen: set[int]) -> Iterator[Problem]:
    """Yield problems with invalid scalars such as dates, unhashable keys and duplicate keys, at any depth."""
    if id(node) in seen:  # an alias
        return
    seen.add(id(node))
    where = _place(node.start_mark)
    if isinstance(node, yaml.ScalarNode) and node.tag.startswith(_YAML_TAG):
        try:
            yaml.SafeLoader("").construct_object(node)
        except (ValueError, OverflowError, LookupError, AttributeError, yaml.YAMLError):
            kind = node.tag.removeprefix(_YAML_TAG)
            yield Problem(str(path), where, f"{node.value} is an invalid {kind}", "quote it if it is a string")
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _node_problems(path, item, seen)
    elif isinstance(node, yaml.MappingNode):
        lines: dict[tuple[str, str], int] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                yield Problem(str(path), _place(key.start_mark), "found unhashable key", "correct the YAML")
                continue
            name, line = (key.tag, key.value), key.start_mark.line + 1
            if name in lines and key.value != "<<":
                found = f"duplicate key, first on line {lines[name]}"
                yield Problem(str(path), f"line {line}: {key.value}", found, "keep one of them")
            lines.setdefault(name, line)
            yield from _node_problems(path, key, seen)
            yield from _node_problems(path, value, seen)


def _variable_problems(path: Path, content: bytes, document: Any) -> Iterator[Problem]:
    if content.startswith(b"$ANSIBLE_VAULT"):
        remedy = "keep secrets in a secret store, and only their names here"
        yield Problem(str(path), "", "encrypted with ansible-vault, whose password a run does not have", remedy)
    elif isinstance(document, yaml.MappingNode):
        for key, _ in document.value:
            if isinstance(key, yaml.ScalarNode) and key.value.startswith("hyperpod_"):
                yield Problem(str(path), key.value, READ_ONLY, "delete the line")
    elif document is not None and document.tag != f"{_YAML_TAG}null":
        yield Problem(str(path), "", "does not contain variables", "write lines such as: slurm_log_size: 100M")
