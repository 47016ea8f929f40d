# SPDX-License-Identifier: Apache-2.0
"""slurm.conf, gres.conf and topology.conf with the lines that the cluster agent writes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from hyperpod_lab.agent.config_files import controllers, network_layers
from hyperpod_lab.agent.node import GPUS, Hardware, Node
from hyperpod_lab.agent.request import Part, parts
from hyperpod_lab.shape import Shape

ETC = "/opt/slurm/etc"
SLURM_CONF = f"{ETC}/slurm.conf"
GRES_CONF = f"{ETC}/gres.conf"
TOPOLOGY_CONF = f"{ETC}/topology.conf"
#: The lines that are the agent's own in a slurm.conf that others have edited.
OWN = re.compile(r"\s*(NodeName|PartitionName|SlurmctldHost|Topology[A-Za-z]*)\s*=", re.IGNORECASE)
HEADER = "# Written by the cluster agent stand-in of the lab."


def slurm_files(shape: Shape, nodes: Sequence[Node], hardware: Hardware) -> Mapping[str, str]:
    """Path -> text of a controller's files; LabUsageError where the request does not say which node is what."""
    files = {SLURM_CONF: slurm_conf(shape, nodes, hardware), GRES_CONF: gres_conf(shape, nodes)}
    if shape.platform.topology == "tree":
        files[TOPOLOGY_CONF] = topology_conf(shape, nodes)
    return files


def _registered(shape: Shape, nodes: Sequence[Node]) -> Iterator[tuple[Node, Part]]:
    """The nodes that have a NodeName, in the request's order."""
    found = parts(shape)
    types = {"compute", "login"} if shape.platform.login_nodes == "registered" else {"compute"}
    by_name = {node.name: node for node in nodes}
    for group in shape.groups:
        part = found.get(group.name)
        if part and part.node_type in types:
            yield from ((by_name[name], part) for name in group.instances if name in by_name)


def slurm_conf(shape: Shape, nodes: Sequence[Node], hardware: Hardware) -> str:
    """slurm.conf with the lines that the agent manages, and what real Slurm needs to run in a container."""
    found = parts(shape)
    registered = list(_registered(shape, nodes))
    hosts: dict[str, list[str]] = {
        partition: [] for group in shape.groups if group.name in found for partition in found[group.name].partitions
    }
    for node, part in registered:
        for partition in part.partitions:
            hosts[partition].append(node.host)
    topology = {"none": [], "tree": ["TopologyPlugin=topology/tree"], "missing": ["TopologyPlugin=topology/tree"]}
    lines = [
        HEADER,
        f"ClusterName={shape.cluster_name}",
        *(f"SlurmctldHost={node.host}({node.address})" for node in controllers(shape, nodes)),
        "AuthType=auth/munge",
        "SlurmUser=slurm",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/linux",
        "MpiDefault=none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU",
        "SchedulerParameters=permit_job_expansion",
        "StateSaveLocation=/var/spool/slurmctld",
        "SlurmdSpoolDir=/var/spool/slurmd",
        "ReturnToService=1",
        "SlurmdTimeout=60",
        *topology[shape.platform.topology],
        *(["GresTypes=gpu"] if any(_gpus(node, part) for node, part in registered) else []),
        "# Slurmctld settings",
        "SlurmctldParameters=enable_configless",
        "SlurmctldLogFile=/var/log/slurm/slurmctld.log",
        "SlurmdLogFile=/var/log/slurm/slurmd.log",
        "Include accounting.conf",
        *(_node(node, _gpus(node, part), hardware) for node, part in registered),
        *(_partition(name, ",".join(members), default=False) for name, members in hosts.items()),
        _partition("dev", "ALL" if registered else "", default=True),
    ]
    return "\n".join(lines) + ("\n" if shape.platform.last_newline else "")


def _gpus(node: Node, part: Part) -> int:
    return GPUS.get(node.instance_type, 0) if part.node_type == "compute" else 0


def _node(node: Node, gpus: int, hardware: Hardware) -> str:
    gres = f" Gres=gpu:{gpus}" if gpus else ""
    size = f"CPUs={hardware.cpus} RealMemory={hardware.memory_mb}{gres}"
    return f"NodeName={node.host} NodeHostname={node.host} NodeAddr={node.address} {size} State=CLOUD"


def _partition(name: str, hosts: str, *, default: bool) -> str:
    # A partition may be empty, but "Nodes=" with nothing is an error.
    nodes = f" Nodes={hosts}" if hosts else ""
    kind = "Default=YES MaxTime=INFINITE State=UP OverSubscribe=EXCLUSIVE" if default else ""
    return f"PartitionName={name}{nodes} {kind or 'Default=NO MaxTime=INFINITE State=UP'}"


def gres_conf(shape: Shape, nodes: Sequence[Node]) -> str:
    """gres.conf for the nodes with GPUs; a comment only where there are none."""
    lines = [HEADER]
    for node, part in _registered(shape, nodes):
        if count := _gpus(node, part):
            devices = f"/dev/nvidia[0-{count - 1}]" if count > 1 else "/dev/nvidia0"
            lines.append(f"NodeName={node.host} Name=gpu File={devices}")
    return "\n".join(lines) + "\n"


def topology_conf(shape: Shape, nodes: Sequence[Node]) -> str:
    """topology.conf: the lowest switches with their nodes, and what joins them."""
    switches: dict[str, list[str]] = {}
    above: dict[str, set[str]] = {}
    for node, _ in _registered(shape, nodes):
        top, middle, lowest = network_layers(node)
        switches.setdefault(lowest, []).append(node.host)
        above.setdefault(middle, set()).add(lowest)
        above.setdefault(top, set()).add(middle)
    lines = [f"SwitchName={name} Nodes={','.join(hosts)}" for name, hosts in switches.items()]
    lines += [f"SwitchName={name} Switches={','.join(sorted(below))}" for name, below in above.items()]
    return "\n".join([HEADER, *lines]) + "\n"


def rewritten(present: str, wanted: str) -> str:
    """A slurm.conf that others have edited, with the agent's own lines as they are wanted now at its end."""
    kept = [line for line in present.splitlines() if not OWN.match(line)]
    own = [line for line in wanted.splitlines() if OWN.match(line)]
    return "\n".join([*kept, *own]) + ("\n" if wanted.endswith("\n") else "")
