# SPDX-License-Identifier: Apache-2.0
"""State of systemd units, and whether their processes have current settings. Uses the standard library only."""

from __future__ import annotations

import os
import time

from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault, journal, run

#: Units without a process only have the time at which they became active.
STARTED = ("ExecMainStartTimestampMonotonic", "ActiveEnterTimestampMonotonic")
PROPERTIES = ("LoadState", "ActiveState", "SubState", "UnitFileState", "NeedDaemonReload", *STARTED)
POLL_SECONDS = 0.2


def look(name, properties=PROPERTIES):
    """Return the properties of a unit; empty if systemd does not answer."""
    _status, out, _err = run(["systemctl", "show", name, "--property=" + ",".join(properties)], 30)
    return dict(line.split("=", 1) for line in out.splitlines() if "=" in line)


def settled(name, seconds, wait=True):
    """Return the result of `look` once no stop or (with `wait`) start by others is under way, or after `seconds`.

    In the middle of a restart, the unit would be started although it starts anyway, and be reported as changed.
    """
    deadline = time.monotonic() + seconds
    while True:
        unit = look(name)
        state = unit.get("ActiveState")
        # A failed unit that waits for its automatic restart has no job under way.
        starting = wait and state == "activating" and unit.get("SubState") != "auto-restart"
        if not (starting or state == "deactivating") or time.monotonic() >= deadline:
            return unit
        time.sleep(POLL_SECONDS)


def changed_at(path):
    """Return when a file last changed, including renames and copies that preserve the modification time."""
    found = os.stat(path)
    return max(found.st_mtime, found.st_ctime)


def outdated(unit, files, since=0):
    """Return whether a file, or a time, is newer than the process."""
    monotonic = next(unit[name] for name in STARTED if name in unit)
    age = time.clock_gettime(time.CLOCK_MONOTONIC) - int(monotonic) / 1e6
    started = time.time() - age
    return started < since or any(os.path.exists(file) and changed_at(file) > started for file in files)


def steps(name, unit, files, since=0, wait=True):
    """Return the systemctl commands that make a loaded unit run with current settings, now and after a reboot.

    Without `wait`, a unit that is starting is left unchanged.
    """
    todo, options = [], [] if wait else ["--no-block"]
    if unit["NeedDaemonReload"] == "yes":
        todo.append(["daemon-reload"])
    if unit["UnitFileState"] != "enabled":
        todo.append(["enable", name])
    if unit["ActiveState"] not in (["active"] if wait else ["active", "activating"]):
        todo.append(["start", *options, name])
    elif outdated(unit, files, since):
        todo.append(["restart", *options, name])
    return todo


def carry_out(name, todo, seconds):
    """Run the commands of `steps`, each with a time limit. Raises Fault with the end of the unit's journal."""
    for step in todo:
        if step[0] in ("start", "restart"):
            # systemd refuses a unit that was started too often recently. This fails if the unit is not loaded, in which
            # case nothing was counted.
            run(["systemctl", "reset-failed", name], 30)
        status, _out, err = run(["systemctl", *step], seconds)
        if status:
            raise Fault(f"systemctl {' '.join(step)}: {err}; {journal(name)}")
