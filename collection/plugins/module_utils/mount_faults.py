# SPDX-License-Identifier: Apache-2.0
"""Error messages of mount(8), its helpers, systemd and the kernel. Uses the standard library only."""

from __future__ import annotations

import re
from collections import namedtuple

#: The remedy, and whether another attempt is useless.
Advice = namedtuple("Advice", "remedy final")

#: Pattern, whether the error is final, and remedy. The first match counts.
_ADVICE = (
    (
        r"unknown filesystem type|No such device|modules? loaded",
        True,
        "install the {kind} client for the running kernel, or start a kernel that has one",
    ),
    (
        r"incorrect mount option|(bad|unknown|unrecognized) (mount )?option|Invalid argument",
        True,
        "correct the mount options: fsx_{kind}_options, or the file system's own options",
    ),
    (
        r"Protocol not supported|protocol is not supported|[Oo]peration not supported|[Nn]ot supported on this",
        True,
        "the kernel or the server lacks what the mount options ask for; correct fsx_{kind}_options, or start a kernel "
        "that has it",
    ),
    (
        r"access denied|Permission denied|Operation not permitted",
        True,
        "grant this node access: the server's list of clients, and owner and mode of the file system's root",
    ),
    (
        r"No such file or directory|filesystem name correct",
        True,
        "the server has no such file system; correct its {name}",
    ),
    (r"Read-only file system", True, "it is read-only; correct its mount options or the server's export"),
    (r"No space left on device|[Qq]uota exceeded", True, "it is full; delete files or enlarge it"),
    (
        r"timed out|[Nn]o answer within|no end within|No route to host|unreachable|Host is down|Connection refused"
        r"|Is the MGS running",
        False,
        "it was not reached; check the file system's state, and that its security group admits this node on {ports}",
    ),
    (r"", False, "see journalctl --unit={unit} and dmesg"),
)
_NAMES = {"lustre": "mount name", "openzfs": "export"}
_PORTS = {"lustre": "TCP ports 988 and 1018 to 1023", "openzfs": "TCP port 2049"}


def advice(said, kind, unit):
    """Return the advice for the message of a failed mount or write."""
    final, remedy = next((final, remedy) for words, final, remedy in _ADVICE if re.search(words, said))
    return Advice(remedy.format(kind=kind, name=_NAMES[kind], ports=_PORTS[kind], unit=unit), final)
