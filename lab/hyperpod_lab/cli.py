# SPDX-License-Identifier: Apache-2.0
"""`hyperpod-lifecycle lab`: wiring only."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterable
from dataclasses import replace as replace_fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from hyperpod_lab.agent import Node
from hyperpod_lab.agent.request import from_create_cluster, from_resource_config
from hyperpod_lab.errors import LabError, LabUsageError
from hyperpod_lab.image import Kind, Release
from hyperpod_lab.lab import DEFAULT_NAME, Lab, ScriptResult
from hyperpod_lab.shape import (
    EXAMPLE,
    EXAMPLE_COUNTS,
    PLATFORMS,
    GroupShape,
    Nesting,
    Registration,
    Shape,
    Staging,
    Topology,
    parse_counts,
)
from hyperpod_lifecycle.arguments import Command
from hyperpod_lifecycle.create_cluster import read_create_cluster
from hyperpod_lifecycle.errors import LifecycleError

app = typer.Typer(
    name="lab",
    help="A HyperPod stand-in on this machine: a container per node, real Slurm. Needs Linux and root (it asks sudo).",
    no_args_is_help=True,
    add_completion=False,
)

command = partial(app.command, cls=Command)

Name = Annotated[str, typer.Option("--name", help="Which lab; several can be up at once.")]


Upload = Annotated[
    Path | None,
    typer.Option(
        "--upload",
        exists=True,
        file_okay=False,
        help="Run this upload folder's on_create.sh instead of this checkout's.",
    ),
]
NoScripts = Annotated[bool, typer.Option("--no-scripts", help="Only the nodes and the agent's files.")]


@app.callback()
def _as_root() -> None:
    """As root, with sudo where needed; a command that is terminated cleans up like an interrupted one."""
    if sys.platform == "linux" and os.geteuid() != 0 and shutil.which("sudo"):
        words = sys.argv[2:] if sys.argv[1:2] == ["lab"] else sys.argv[1:]
        os.execvp("sudo", ["sudo", sys.executable, "-m", "hyperpod_lab", *words])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def _lab(name: str) -> Lab:
    return Lab(name, say=lambda text: typer.echo(f"lab: {text}", err=True))


@command()
def up(
    create_cluster: Annotated[
        Path | None, typer.Option(help="A create_cluster.json; default: the documented example.")
    ] = None,
    resource_config: Annotated[Path | None, typer.Option(help="A resource_config.json: one node per instance.")] = None,
    provisioning_parameters: Annotated[
        Path | None,
        typer.Option(help="The second file; default: the one beside the first. Absent in the API-driven form."),
    ] = None,
    count: Annotated[list[str] | None, typer.Option(metavar="GROUP=N", help="Nodes of a group; repeat it.")] = None,
    release: Annotated[Release | None, typer.Option(help="Debian release of the nodes; trixie by default.")] = None,
    mirror: Annotated[
        str | None, typer.Option(help="Debian archive for the image; default: the machine's own.")
    ] = None,
    parallel: Annotated[int, typer.Option(min=0, help="Nodes that run the scripts at once; 0: all.")] = 0,
    image: Annotated[Kind | None, typer.Option(help="ami, the default: what HyperPod's has; or bare.")] = None,
    login_nodes: Annotated[Registration | None, typer.Option(help="Whether login nodes have a NodeName.")] = None,
    topology: Annotated[Topology | None, typer.Option(help="Topology lines and their file.")] = None,
    staging: Annotated[Staging | None, typer.Option(help="The shape of the scripts' folder in /tmp.")] = None,
    slurm_config: Annotated[
        Nesting | None, typer.Option(help="Whether ClusterType and SlurmConfig are in ClusterConfig.")
    ] = None,
    last_newline: Annotated[
        bool | None, typer.Option("--last-newline/--no-last-newline", help="Whether slurm.conf ends in one.")
    ] = None,
    late_lines: Annotated[
        float | None, typer.Option(min=0, help="Seconds from new nodes' scripts to their lines; live: 300.")
    ] = None,
    rewrite_every: Annotated[
        float | None, typer.Option(min=0, help="Seconds between rewrites of slurm.conf while scripts run.")
    ] = None,
    no_scripts: NoScripts = False,
    upload: Upload = None,
    name: Name = DEFAULT_NAME,
) -> None:
    """Start a lab, or bring one that is up back to its shape, and run the scripts on every node."""
    lab = _lab(name)
    counts, shape = parse_counts(count or []), lab.request
    kept = shape.platform if shape else PLATFORMS["ami"]
    if shape is None or create_cluster or resource_config or provisioning_parameters:
        shape = _asked_for(create_cluster, resource_config, provisioning_parameters, counts, release or Release.TRIXIE)
    else:
        shape = replace_fields(shape.resized(counts), release=release or shape.release)
    asked: dict[str, Any] = {
        "login_nodes": login_nodes,
        "topology": topology,
        "staging": staging,
        "slurm_config": slurm_config,
        "last_newline": last_newline,
        "late_lines": late_lines,
        "rewrite_every": rewrite_every,
    }
    changes = {key: value for key, value in asked.items() if value is not None}
    platform = PLATFORMS[image] if image else kept
    shape = replace_fields(shape, platform=replace_fields(platform, **changes))
    results = lab.up(shape, scripts=not no_scripts, upload_folder=upload, mirror=mirror, parallel=parallel)
    _finish(lab, results)


def _asked_for(
    create_cluster: Path | None,
    resource_config: Path | None,
    parameters: Path | None,
    counts: dict[str, int],
    release: Release,
) -> Shape:
    if create_cluster and resource_config:
        raise LabUsageError("--create-cluster and --resource-config exclude each other")
    if resource_config:
        return from_resource_config(resource_config, parameters, release).resized(counts)
    if create_cluster is None:
        counts = {**EXAMPLE_COUNTS, **counts}
    else:
        read_create_cluster(create_cluster)  # everything that is wrong with it, in one error
    return from_create_cluster(create_cluster or EXAMPLE / "create_cluster.json", parameters, release).resized(counts)


@command()
def status(name: Name = DEFAULT_NAME) -> None:
    """The nodes, and what Slurm says of them."""
    lab = _lab(name)
    if lab.request is None:
        typer.echo(f"lab {name} is not up")
        return
    for node in lab.nodes():
        state = "running" if node.running else "stopped"
        typer.echo(
            f"{node.name:24} {node.host:18} {node.address!s:15} {node.instance_type:18} {node.instance_id} {state}"
        )
    if lab.update_status:
        typer.echo(f"SoftwareUpdateStatus: {lab.update_status}")
    _sinfo(lab)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
)
def exec(
    context: typer.Context,
    node: Annotated[str, typer.Argument(help="Instance name, host name or address.")],
    name: Name = DEFAULT_NAME,
    user: Annotated[str, typer.Option(help="Who runs it.")] = "root",
) -> None:
    """Run a command in a node (a login shell if none is given) and end with its status."""
    lab = _lab(name)
    container = lab.node(node).container
    terminal = ["--interactive", "--tty"] if sys.stdin.isatty() and sys.stdout.isatty() else ["--interactive"]
    words = context.args[1:] if context.args[:1] == ["--"] else context.args
    os.execvpe(
        "podman",
        ["podman", "exec", *terminal, "--user", user, container, *(words or ["bash", "--login"])],
        dict(lab.podman.environment),
    )


@command()
def logs(node: Annotated[str, typer.Argument(help="Instance name.")], name: Name = DEFAULT_NAME) -> None:
    """What the last run of on_create.sh on a node printed: the stand-in for its CloudWatch stream."""
    lab = _lab(name)
    path = lab.state / "logs" / f"{lab.node(node).name}.log"
    if not path.exists():
        raise LabUsageError(f"on_create.sh has not run on {node}")
    sys.stdout.write(path.read_text(errors="replace"))


@command()
def scale(
    group: str,
    count: Annotated[int, typer.Argument(min=0)],
    no_scripts: NoScripts = False,
    upload: Upload = None,
    name: Name = DEFAULT_NAME,
) -> None:
    """Give a group another number of nodes."""
    lab = _lab(name)
    _finish(lab, lab.scale(group, count, scripts=not no_scripts, upload_folder=upload))


@command()
def add_group(
    group: str,
    instance_type: Annotated[str, typer.Argument(help="Such as ml.p5.48xlarge.")],
    count: Annotated[int, typer.Argument(min=0)],
    partition: Annotated[str, typer.Option(help="Its partition.")],
    no_scripts: NoScripts = False,
    upload: Upload = None,
    name: Name = DEFAULT_NAME,
) -> None:
    """Add a group of compute nodes."""
    lab, new = _lab(name), GroupShape(group, instance_type, ()).resized(count)
    _finish(lab, lab.add_group(new, partition, scripts=not no_scripts, upload_folder=upload))


@command()
def replace(
    node: Annotated[str, typer.Argument(help="Instance name.")],
    new_address: Annotated[bool, typer.Option("--new-address", help="Give it another address and host name.")] = False,
    no_scripts: NoScripts = False,
    upload: Upload = None,
    name: Name = DEFAULT_NAME,
) -> None:
    """Replace a node: new instance id, disks and host keys."""
    lab = _lab(name)
    _finish(lab, lab.replace(node, new_address=new_address, scripts=not no_scripts, upload_folder=upload))


@command()
def update(
    group: Annotated[list[str] | None, typer.Argument(help="Groups to update; default: all.")] = None,
    prepare: Annotated[
        str | None, typer.Option(help="Shell command on each new root: how the newer image differs.")
    ] = None,
    upload: Upload = None,
    name: Name = DEFAULT_NAME,
) -> None:
    """Renew the root of nodes, as UpdateClusterSoftware does."""
    lab = _lab(name)

    def differ(node: Node) -> None:
        if prepare:
            lab.exec(node, ["sh", "-c", prepare], check=True)

    results = lab.update(group or [], prepare=differ, upload_folder=upload)
    typer.echo(f"SoftwareUpdateStatus: {lab.update_status}")
    _finish(lab, results)


@command()
def reboot(node: Annotated[str, typer.Argument(help="Instance name.")], name: Name = DEFAULT_NAME) -> None:
    """Reboot a node. No scripts run."""
    _lab(name).reboot(node)


@command()
def down(
    images: Annotated[bool, typer.Option("--images", help="Remove the node images too.")] = False,
    name: Name = DEFAULT_NAME,
) -> None:
    """Remove a lab: nodes, network and state."""
    removed = _lab(name).down(images=images)
    typer.echo(f"removed {', '.join(removed)}" if removed else f"lab {name} is not up")


def _finish(lab: Lab, results: Iterable[ScriptResult]) -> None:
    results = list(results)
    for each in results:
        verdict = "ok" if each.exit_code == 0 else f"exit {each.exit_code}"
        typer.echo(f"{each.node.name} ({verdict}, {each.seconds:.0f} s): {each.summary}")
    _sinfo(lab)
    failed = [each for each in results if each.exit_code != 0]
    if failed:
        raise LabError(
            "on_create.sh failed on "
            + ", ".join(each.node.name for each in failed)
            + "; `lab logs NODE` has its whole output"
        )


def _sinfo(lab: Lab) -> None:
    try:
        controllers = lab.nodes_of("controller")
    except LabUsageError as error:
        typer.echo(f"the files do not say which node is the controller: {error}")
        return
    for node in controllers:
        # sinfo asks for ten seconds before it says that nobody answers.
        done = lab.exec(
            node, ["sh", "-c", "systemctl is-active --quiet slurmctld && exec /opt/slurm/bin/sinfo"], timeout=60
        )
        if done.returncode == 0:
            typer.echo(done.stdout.rstrip())
            return
    typer.echo("slurmctld does not run yet" if controllers else "there is no controller")


def main() -> None:
    """`python -m hyperpod_lab`."""
    try:
        app()
    except LifecycleError as error:
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(int(error.exit_code)) from error
