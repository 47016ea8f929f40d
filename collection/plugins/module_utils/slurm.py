# SPDX-License-Identifier: Apache-2.0
"""Text formats of Slurm. Uses the standard library only, because it runs on the node."""

from __future__ import annotations

import re
from fnmatch import fnmatch

from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import run
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.hosts import same_host
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.waits import pause

#: Parameters in slurm.conf that only the HyperPod agent may change, besides all of Topology*.
MANAGED = ("ClusterName", "SlurmctldHost", "PartitionName", "NodeName", "TaskPlugin", "SchedulerParameters")

#: Times that Slurm's commands must refuse the configuration before it counts.
REFUSALS = 3

#: Slurm's default ports.
PORTS = {"slurmctld": 6817, "slurmdbd": 6819}
_PORT_OF = {"slurmctldport": "slurmctld", "dbdport": "slurmdbd", "accountingstorageport": "slurmdbd"}

_PARAMETER = re.compile(r"^\s*([A-Za-z]+)\s*=\s*(.*?)\s*$")
_HOST = re.compile(r"^([^()\s]+)(?:\(([^()\s]+)\))?$")

MARK = "# hyperpod-lifecycle: was include "
END = "# hyperpod-lifecycle: end of include"
_INCLUDE = re.compile(r"^\s*include\s+(\S*[*?\[]\S*)\s*$", re.IGNORECASE)


def parameters(text):
    """Yield each ``Key=value`` of slurm.conf in order, without comments, continued lines joined; keys as written."""
    joined = re.sub(r"\\\r?\n", " ", text)
    for line in joined.splitlines():
        match = _PARAMETER.match(re.sub(r"(?<!\\)#.*", "", line))
        if match:
            yield match.groups()


def ports(settings, slurmdbd_conf=""):
    """Return the port of each daemon from slurm.conf's settings and slurmdbd.conf; the first of a range."""
    found = {}
    for key, value in [*parameters(slurmdbd_conf), *settings]:
        daemon, number = _PORT_OF.get(key.lower()), re.match(r"[1-9]\d*", value)
        if daemon and number:
            found[daemon] = int(number[0])
    return {**PORTS, **found}


def controller_hosts(text):
    """Return name and address of every ``SlurmctldHost=name(address)``, primary first. Address defaults to name."""
    matches = [_HOST.match(value) for key, value in parameters(text) if key.lower() == "slurmctldhost"]
    return [(match[1], match[2] or match[1]) for match in matches if match]


def controllers(text):
    """Return the names and addresses of the controllers."""
    return list(dict.fromkeys(part for host in controller_hosts(text) for part in host))


def managed(text):
    """Return what the agent manages as ``{parameter: [values in order]}``."""
    names = {name.lower(): name for name in MANAGED}
    found = {}
    for key, value in parameters(text):
        name = names.get(key.lower()) or (key if key.lower().startswith("topology") else "")
        if name:
            found.setdefault(name, []).append(" ".join(value.split()))
    return found


def hostlist(expression):
    """Expand ``a[1-2,07],b`` to ``a1``, ``a2``, ``a07``, ``b``."""
    found = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", expression):
        bracket = re.search(r"\[([^\]]*)\]", part)
        if not bracket:
            found.append(part)
            continue
        head, tail = part[: bracket.start()], part[bracket.end() :]
        for item in bracket.group(1).split(","):
            first, _hyphen, last = item.partition("-")
            if last.isdigit() and first.isdigit():
                numbers = [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
            else:
                numbers = [item]
            for number in numbers:
                found += hostlist(head + number + tail)
    return found


def node_addresses(text):
    """Yield each NodeName of a slurm.conf, or of ``scontrol --oneliner show node``, with its NodeAddr.

    Without NodeAddr, it is NodeHostname or the name itself, as for Slurm.
    """
    for key, value in parameters(text):
        names, *options = value.split() or [""]
        if key.lower() != "nodename" or names.lower() == "default":
            continue
        given = {name.lower(): each for name, _sign, each in (option.partition("=") for option in options)}
        addresses = hostlist(given.get("nodeaddr") or given.get("nodehostname") or names)
        yield from zip(hostlist(names), addresses, strict=False)


def node_name(text, address, host):
    """Return the NodeName that has the address, else the one with the host name as address; empty if none has.

    The host name alone does not tell: NodeNames can be made of instance names.
    """
    found = list(node_addresses(text))
    for own in (address, host):
        for name, there in found:
            if same_host(there, own):
                return name
    return ""


def touched(before, after):
    """Return, for a message, what the agent manages and an edit of slurm.conf would change. Both are whole texts.

    It is for an edit of ours only. Two readings of the file differ whenever the agent adds or removes a node.
    """
    old, new = managed(before), managed(after)
    return [
        "{}={} became {}".format(name, ",".join(old.get(name, ["absent"])), ",".join(new.get(name, ["absent"])))
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    ]


def expand_includes(text, matches):
    """Return plugstack.conf with each wildcard include replaced by the matching files.

    Configless nodes get the file without the directory, and cannot expand a wildcard. It is kept as a comment,
    so that a later run finds added and removed files. `matches` is a function from a pattern to sorted paths. Lines
    that others have written between the marks stay.
    """
    lines = []
    listed = ""  #: the pattern whose files are listed here
    for line in text.splitlines():
        if line == END:
            listed = ""
            continue
        if listed and line.startswith("include ") and fnmatch(line, f"include *{listed}"):
            continue
        wildcard = _INCLUDE.match(line)
        if line.startswith(MARK):
            pattern = listed = line[len(MARK) :]
        elif wildcard:
            pattern = wildcard.group(1)
        else:
            lines.append(line)
            continue
        lines.append(MARK + pattern)
        lines += ["include " + path for path in matches(pattern)]
        lines.append(END)
    return "".join(line + "\n" for line in lines)


def refused(scontrol):
    """Return the message if Slurm's own commands refuse the configuration, else an empty one. No daemon is asked."""
    for remaining in range(REFUSALS - 1, -1, -1):
        status, _out, err = run([scontrol, "show", "hostnames", "a"], 20)
        if status == 0:
            return ""
        if remaining:
            pause(1)  # the agent may be writing the file
    return f"Slurm refuses its configuration: {' '.join(err.split())}; correct it"


def pings(answer):
    """Return each controller in the output of ``scontrol ping``, in order: (``primary`` or ``backup``, name, state)."""
    found = re.findall(r"Slurmctld\((\w+)\) at (\S+) is (\w+)", answer)
    return [(role if role == "primary" else "backup", host, state) for role, host, state in found]


def ping(answer, name):
    """Return role and state of the controller `name` in the output of ``scontrol ping``: (``backup``, ``DOWN``)."""
    for role, host, state in pings(answer):
        if same_host(host, name):
            return role, state
    return "", "UP" if "is UP" in answer else "DOWN"


def controllers_up(answer):
    """Return the names of the controllers that are up in the output of ``scontrol ping``."""
    return {host for _role, host, state in pings(answer) if state == "UP"}


def another_in_charge(answer, name):
    """Return whether a controller before `name` is up in the output of ``scontrol ping``."""
    before = []
    for _role, host, state in pings(answer):
        if same_host(host, name):
            return "UP" in before
        before.append(state)
    return False


def node_state(line):
    """Parse the ``State=`` of a ``scontrol --oneliner show node`` line as (base state, set of flags).

    ``IDLE*+DRAIN`` is (``IDLE``, {``DRAIN``, ``NOT_RESPONDING``}).
    """
    match = re.search(r"(?:^|\s)State=(\S+)", line)
    if not match:
        return "", frozenset()
    base, *flags = match.group(1).split("+")
    found = set(flags)
    if base.rstrip("~#%$@^!-").endswith("*"):
        found.add("NOT_RESPONDING")
    return base.rstrip("*~#%$@^!-"), frozenset(found)


def exec_start(unit):
    """Return the ExecStart of a unit file with continued lines joined; empty if it has none."""
    joined = re.sub(r"[ \t]*\\\r?\n[ \t]*", " ", unit)
    commands = re.findall(r"^[ \t]*ExecStart[ \t]*=[ \t]*(.*?)[ \t\r]*$", joined, re.MULTILINE)
    return commands[-1] if commands else ""


def drop_in(daemon, unit, conf_server, restart_seconds):
    """Return the drop-in for a daemon with the unit file `unit`. `conf_server` is empty for slurmctld and slurmdbd."""
    lines = [
        "# Written whole by hyperpod-lifecycle (role slurm) on each run.",
        "[Unit]",
        "After=munge.service network-online.target",
        "Wants=munge.service network-online.target",
        # A controller may start much later than this node.
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "Restart=on-failure",
        f"RestartSec={restart_seconds}",
        # Some scripts have removed $MAINPID from the unit.
        "ExecReload=",
        "ExecReload=/bin/kill -HUP $MAINPID",
    ]
    if daemon != "slurmctld":
        # slurmd would wait two minutes for threads connected to a dead controller; jobs are not its children.
        # A standby slurmdbd takes control when it is told to exit, and does not exit (24.11).
        lines.append("TimeoutStopSec=20")
    # slurmd makes /run/slurm/conf a link, sackd a directory. What the other one has left would stay, and be read.
    if daemon == "slurmd":
        lines.append("ExecStartPre=-/bin/sh -c '[ -L /run/slurm/conf ] || rm -rf /run/slurm/conf'")
    if daemon == "sackd":
        lines.append("ExecStartPre=+-/bin/sh -c '[ ! -L /run/slurm/conf ] || rm /run/slurm/conf'")
    if conf_server:
        start = re.sub(r"\s+--conf-server[=\s]+\S+", "", exec_start(unit))
        lines += [
            "ExecStart=",
            f"ExecStart={start} --conf-server {conf_server}",
            # Slurm's commands find the fetched configuration in /run/slurm/conf, also while the daemon restarts.
            "RuntimeDirectoryPreserve=yes",
        ]
    return "\n".join(lines) + "\n"
