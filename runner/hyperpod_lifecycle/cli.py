# SPDX-License-Identifier: Apache-2.0
"""The command `hyperpod-lifecycle`: parses options, calls one module, prints its result and sets the exit code.

Modules that only some commands need are imported in those commands, to keep the start short.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
import tempfile
import traceback
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from hyperpod_lifecycle import __version__, streams
from hyperpod_lifecycle.arguments import Command
from hyperpod_lifecycle.errors import ExitCode, LifecycleError
from hyperpod_lifecycle.paths import Paths

if TYPE_CHECKING:
    from hyperpod_lifecycle.options import Options

app = typer.Typer(
    name="hyperpod-lifecycle",
    help="Configure nodes of SageMaker HyperPod Slurm clusters from the cluster's JSON files.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

command = partial(app.command, cls=Command)

ResourceConfig = Annotated[
    Path | None,
    typer.Option("--resource-config", metavar="FILE", help="Default: /opt/ml/config/resource_config.json."),
]
ProvisioningParameters = Annotated[
    Path | None,
    typer.Option(
        "--provisioning-parameters", metavar="FILE", help="Default: /opt/ml/config/provisioning_parameters.json."
    ),
]
Inventory = Annotated[
    Path | None,
    typer.Option("--inventory", metavar="DIR", help="Inventory directory with your settings."),
]
Check = Annotated[bool, typer.Option("--check", help="Dry run.")]
Json = Annotated[bool, typer.Option("--json", help="Print only JSON on standard output.")]


class Connection(str, Enum):
    """How Ansible reaches this node."""

    WARM = "warm"
    LOCAL = "local"


class Machine(str, Enum):
    """Architectures of HyperPod instances."""

    X86_64 = "x86_64"
    AARCH64 = "aarch64"


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Options before the command."""
    if version:
        print(f"hyperpod-lifecycle {__version__}")
        raise typer.Exit


@command()
def apply(
    resource_config: ResourceConfig = None,
    provisioning_parameters: ProvisioningParameters = None,
    inventory: Inventory = None,
    tags: Annotated[
        list[str] | None,
        typer.Option(
            "--tags", metavar="TAG,…", help="Run only these concerns or phases (install, configure, service, verify)."
        ),
    ] = None,
    skip_tags: Annotated[
        list[str] | None, typer.Option("--skip-tags", metavar="TAG,…", help="Skip these concerns or phases.")
    ] = None,
    check: Check = False,
    diff: Annotated[bool, typer.Option("--diff", help="Show how files change.")] = False,
    verbose: Annotated[
        int,
        typer.Option(
            "--verbose", "-v", count=True, show_default=False, help="Print each task; -vv adds Ansible's output."
        ),
    ] = 0,
    extra_vars: Annotated[
        list[str] | None,
        typer.Option(
            "--extra-vars",
            "-e",
            metavar="NAME=VALUE",
            help="Override a setting (YAML value); repeatable.",
        ),
    ] = None,
    as_json: Json = False,
    connection: Annotated[
        Connection | None, typer.Option(help="Run modules in one warm interpreter, or as Ansible does.")
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=1, help="Time limit of the run.")] = 3600,
    lock_wait: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="Time to wait for another run.")] = 60,
) -> None:
    """Configure this node from the cluster's JSON files."""
    from hyperpod_lifecycle import extra_vars as extra
    from hyperpod_lifecycle.argument_specs import declared, roles_of_the_collection
    from hyperpod_lifecycle.options import Options

    options = declared(roles_of_the_collection()) if extra_vars else {}
    values = extra.parse(extra_vars or (), options)
    _play(
        Options(
            extra_vars=values,
            extra_words=tuple(extra.shown(values, options)),
            tags=_words("--tags", tags),
            skip_tags=_words("--skip-tags", skip_tags),
            check=check,
            diff=diff,
            verbosity=verbose,
            connection=connection.value if connection else None,
            timeout=timeout,
            lock_wait=lock_wait,
            resource_config=resource_config,
            provisioning_parameters=provisioning_parameters,
            inventory=inventory,
            json=as_json,
        ),
    )


def _play(options: Options, playbook: str = "site") -> NoReturn:
    """Run a playbook of the collection on this node, print the result and exit with its code."""
    from hyperpod_lifecycle import run
    from hyperpod_lifecycle.options import Site
    from hyperpod_lifecycle.progress import Progress

    paths = Paths()
    progress = Progress(sys.stderr if options.json else sys.stdout, None if options.check else paths.log_file)
    site = Site(f"hyperpod.lifecycle.{playbook}", checkout=_checkout())
    report = run.apply(options, progress, paths, site)
    if options.json:
        print(report.to_json())
    print(report.summary, file=sys.stderr if options.json or report.exit_code else sys.stdout)
    raise typer.Exit(ExitCode.INTERNAL if report.exit_code is None else report.exit_code)


@command()
def backup(
    dest: Annotated[str, typer.Argument(metavar="DEST", help="Directory on shared storage, or s3://BUCKET/PREFIX.")],
    check: Check = False,
    as_json: Json = False,
) -> None:
    """Back up the accounting database and slurmctld's state.

    Run it on the controller. Slurm keeps running.
    """
    from hyperpod_lifecycle.options import Options

    dest = _absolute(dest)
    _play(
        Options(request=("backup", dest), check=check, extra_vars={"backup_dest": dest}, json=as_json),
        playbook="backup",
    )


@command()
def restore(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A backup, or a directory of backups (uses the latest).")
    ],
    replace_newer: Annotated[
        bool, typer.Option("--replace-newer", help="Restore even if newer jobs are lost.")
    ] = False,
    check: Check = False,
    as_json: Json = False,
) -> None:
    """Restore a backup.

    Run it on the controller. The current state is backed up first.
    """
    from hyperpod_lifecycle.options import Options

    source = _absolute(source)
    request = ("restore", source, *(["--replace-newer"] if replace_newer else []))
    variables = {"restore_source": source, "restore_replace_newer": replace_newer}
    _play(Options(request=request, check=check, extra_vars=variables, json=as_json), playbook="restore")


def _absolute(place: str) -> str:
    return place if "://" in place else str(Path(place).absolute())


@command()
def plan(
    resource_config: ResourceConfig = None,
    provisioning_parameters: ProvisioningParameters = None,
    inventory: Inventory = None,
    node: Annotated[
        str | None, typer.Option("--node", metavar="NAME", help="Instance name. Default: this machine.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a node's type and planned concerns.

    Reads files only and needs no root.
    """
    import json

    from hyperpod_lifecycle import inputs, plan, users
    from hyperpod_lifecycle.addresses import find_node
    from hyperpod_lifecycle.cluster import load
    from hyperpod_lifecycle.environment import clean_environment
    from hyperpod_lifecycle.question import SITE, ask

    found = inputs.resolve(Paths(), resource_config, provisioning_parameters, inventory, _checkout())
    name = node or found.node
    cluster = load(found.resource_config, found.provisioning_parameters, planning=bool(name))
    this = cluster.node_by_name(name) if name else find_node(cluster, wait_seconds=0)
    notes = (*found.notes, *found.check_names(cluster), *users.load(found.shared_users).notes)
    private = Path(tempfile.mkdtemp(prefix="hyperpod-lifecycle-"))
    try:
        path = found.write(private / "inventory", this.name, "local")
        made = plan.make(this, ask(SITE, path, private, clean_environment(private, None, "local")))
    finally:
        shutil.rmtree(private)
    if as_json:
        print(json.dumps(made.to_dict(), indent=2))
    else:
        print("\n".join([*made.lines(), *(f"note: {note}" for note in notes)]))


@command()
def report(
    resource_config: ResourceConfig = None,
    provisioning_parameters: ProvisioningParameters = None,
    inventory: Inventory = None,
    as_json: Json = False,
) -> None:
    """Show the last run and whether its inputs have changed."""
    from hyperpod_lifecycle import inputs, lock, report

    paths = Paths()
    last = report.read(paths.report_file)
    if as_json:
        print(last.to_json())
        return
    for line in (*last.table(), *last.details()):
        print(line)
    if last.status == report.UNFINISHED:
        going = lock.is_held(paths.lock_file)
        print(f"the run that began at {last.started} {'is still running' if going else 'was killed: run it again'}")
    try:
        now = inputs.resolve(paths, resource_config, provisioning_parameters, inventory, _checkout()).fingerprints()
    except LifecycleError as error:
        print(f"note: a run would fail now: {error}")
    else:
        for note in last.differences(now):
            print(f"note: {note}")
    print(f"{last.started}: {last.summary}")


def _python_versions(values: list[str] | None) -> list[str] | None:
    for value in values or ():
        if not re.fullmatch(r"3\.\d{1,3}", value):
            raise typer.BadParameter(f"{value!r} is not a version such as 3.12")
    return values


@command()
def assumptions(as_json: Json = False) -> None:
    """Probe the assumptions about this node."""
    import json

    from hyperpod_lifecycle import assumptions

    findings = assumptions.probe(Paths())
    if as_json:
        print(json.dumps([finding.to_dict() for finding in findings], indent=2))
    else:
        print("\n".join(assumptions.lines(findings)))


@command()
def bundle(
    dest: Annotated[Path, typer.Argument(metavar="DEST", help="Directory to create or replace.")],
    python: Annotated[
        list[str] | None,
        typer.Option(
            "--python",
            metavar="VERSION",
            help="Python of the nodes; repeatable (default: 3.10 and 3.12).",
            callback=_python_versions,
        ),
    ] = None,
    machine: Annotated[Machine, typer.Option(help="Architecture of the nodes.")] = Machine.X86_64,
    site: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            exists=True,
            file_okay=False,
            help="Directory with your inventory, users and parameters.",
        ),
    ] = None,
) -> None:
    """Build the folder to upload: on_create.sh and all wheels."""
    from hyperpod_lifecycle.bundle import build

    made = build(
        dest,
        python or ["3.10", "3.12"],
        machine.value,
        site=site,
        say=lambda line: print(line, flush=True),
    )
    print(f"made {made}")


def main() -> None:
    """Entry point of the command."""
    for name in ("stdout", "stderr"):
        streams.protect(name)
    _mount_lab(wanted=sys.argv[1:2] == ["lab"])
    try:
        app()
    except LifecycleError as error:
        print(f"hyperpod-lifecycle: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except Exception as error:
        if isinstance(error, OSError) and error.filename:  # such as a file that only root may read
            print(f"hyperpod-lifecycle: {error.filename}: {error.strerror}", file=sys.stderr)
            sys.exit(ExitCode.INPUT)
        print(f"hyperpod-lifecycle: {type(error).__name__}: {error}; {_keep_traceback()}", file=sys.stderr)
        sys.exit(ExitCode.INTERNAL)


def _mount_lab(wanted: bool) -> None:
    """Add the command `lab`; only a checkout has its package, which is imported only if `wanted`."""
    here = importlib.util.find_spec("hyperpod_lab") is not None
    if here and wanted:
        app.add_typer(importlib.import_module("hyperpod_lab.cli").app, name="lab")
        return

    @command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
    def lab() -> None:
        """Run a cluster in local containers (from a checkout)."""
        raise NoLabError("the lab needs a checkout of the project: pip install --editable '.[dev]', or make lab")


class NoLabError(LifecycleError):
    """The command `lab` was called without a checkout."""

    exit_code = ExitCode.USAGE


def _checkout() -> Path | None:
    """Return the source tree that this package runs from, or None if it is installed."""
    root = Path(__file__).parents[2]
    return root if (root / "inventory_plugins").is_dir() else None


def _words(option: str, values: list[str] | None) -> tuple[str, ...]:
    """Return the words of a repeatable option with commas. Raises BadParameter if a value has none."""
    lists = [[word for word in value.replace(" ", "").split(",") if word] for value in values or ()]
    if not all(lists):
        raise typer.BadParameter("it names no tag", param_hint=option)
    return tuple(word for words in lists for word in words)


def _keep_traceback() -> str:
    """Write the current traceback to the log, or to the screen if the log cannot be written; return where it is."""
    from hyperpod_lifecycle.progress import Progress

    log = Paths().log_file
    progress = Progress(sys.stderr, log)
    progress.log(traceback.format_exc())
    progress.close()
    if progress.fault:  # not root
        progress.show(traceback.format_exc())
    return f"an internal error; its traceback is {'above' if progress.fault else f'in {log}'}"


if __name__ == "__main__":
    main()
