# SPDX-License-Identifier: Apache-2.0
"""Judge a node by the controller's record of it. Uses the standard library only, because it runs on the node."""

from __future__ import annotations

import re
from collections import namedtuple

from ansible_collections.hyperpod.lifecycle.plugins.module_utils.slurm import node_state

#: What `scontrol --oneliner show node` says of a node; `by` is user and time of the reason.
Node = namedtuple("Node", "name address base flags reason by reservation")

#: State and what to say of it. `action` is `resume` or `drain` with a reason in `said`, or empty.
Finding = namedtuple("Finding", "state said action", defaults=("",))

READY = "ready"
BROKEN = "broken"  #: a fault of this node's daemon, which may still go away
INVALID = "invalid"  #: the platform's or the hardware's, which may still go away
BLOCKED = "blocked"
RESERVED = "reserved"

#: Begin of the reasons that HyperPod's agents set and act upon.
AGENT = "Action:"
#: Begin of the reasons of this project's drains; the concern follows.
OURS = "hyperpod-lifecycle: "
#: Reasons that Slurm sets itself when a node registers or does not, in 22.05 to 25.11.
_SLURMS = re.compile(
    r"((Not responding|Node unexpectedly rebooted|Low (RealMemory|CPUs|TmpDisk|socket\*core\*thread count)"
    r"|gres/\S+ count (reported lower than configured|too low))( \([^()]*\))?(, |$))+"
)
_REASON = re.compile(r"\sReason=(.*?)(?:\s\[([^\[\]]+@[^\[\]]+)\])?(?=\s\w+=|\s*$)")
_UNUSABLE = ("DRAIN", "FAIL")
_OFF = ("POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "POWERING_UP", "POWER_UP", "REBOOT_REQUESTED", "REBOOT_ISSUED")


def parse(line):
    """Return the Node of a line of ``scontrol --oneliner show node``."""
    base, flags = node_state(line)
    found = _REASON.search(line)

    def value(key):
        match = re.search(rf"(?:^|\s){key}=(\S+)", line)
        return match[1] if match else ""

    reason, by = (found[1].strip(), found[2] or "") if found else ("", "")
    return Node(value("NodeName"), value("NodeAddr"), base, flags, reason, by, value("ReservationName"))


def find(lines, name, address):
    """Return the Node with this name, else that with this address, among all records; None if there is none."""
    nodes = [parse(line) for line in lines.splitlines() if line.startswith("NodeName=")]
    for matches in (lambda node: node.name == name, lambda node: node.address == address):
        found = next(filter(matches, nodes), None)
        if found:
            return found
    return None


def judge(node, verdicts):
    """Return the Finding for a node whose daemon runs. `verdicts` are those of this run, by concern."""
    blocked = [f"{OURS}{name}: {each['reason']}" for name, each in verdicts.items() if each["status"] == "blocked"]
    shown = "+".join([node.base, *sorted(node.flags)])
    unusable = node.base == "DOWN" or node.flags.intersection(_UNUSABLE) or node.base in _UNUSABLE
    if node.reason.startswith(AGENT):
        return Finding(BLOCKED, f"HyperPod acts on {node.name} ({shown}): {node.reason}")
    if "INVALID_REG" in node.flags:
        why = node.reason or "no reason given"
        return Finding(INVALID, f"the controller refuses the registration of {node.name} ({shown}): {why}")
    if "NOT_RESPONDING" in node.flags or node.base == "UNKNOWN":
        return Finding(BROKEN, f"the controller waits for {node.name} to answer ({shown})")
    if unusable:
        return _unusable(node, shown, verdicts, blocked)
    off = sorted(node.flags.intersection(_OFF))
    if off:
        undo = f"scontrol update nodename={node.name} state=power_up"
        return Finding(INVALID, f"{node.name} is {shown}; if that does not end: {undo}")
    if blocked:
        return Finding(BLOCKED, blocked[0], "drain")
    if node.flags.intersection(("MAINTENANCE", "MAINT")) or node.base == "MAINT":
        why = f"a maintenance reservation{_named(node)} holds {node.name}"
        return Finding(RESERVED, f"{why}, as HyperPod's does while it checks a node")
    return Finding(READY, f"{node.name} is in a reservation{_named(node)}" if "RESERVED" in node.flags else "")


def _named(node):
    """Return the name of the node's reservation for a message; older versions do not show it."""
    return f" ({node.reservation})" if node.reservation else ""


def _unusable(node, shown, verdicts, blocked):
    """Return the Finding for a node that is down, drained or failing."""
    concern = node.reason[len(OURS) :].partition(":")[0] if node.reason.startswith(OURS) else ""
    failing = "FAIL" in node.flags or node.base == "FAIL"
    mended = verdicts.get(concern, {}).get("status") == "ok" if concern else _SLURMS.fullmatch(node.reason)
    if mended and not blocked and not failing:
        return Finding(BLOCKED, f"{node.name} was {shown}: {node.reason}", "resume")
    if concern:
        return Finding(
            BLOCKED, f"{node.name} is drained: {node.reason}; hyperpod-lifecycle apply --tags {concern},slurm"
        )
    by = f" (set by {node.by})" if node.by else ""
    why = f"{node.reason}{by}" if node.reason else "no reason given"
    undo = f"scontrol update nodename={node.name} state=resume"
    return Finding(BLOCKED, f"{node.name} is {shown}: {why}; once the cause is gone: {undo}")
