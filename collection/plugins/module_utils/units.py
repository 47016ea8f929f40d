# SPDX-License-Identifier: Apache-2.0
"""What systemd knows of a unit, and whether its process has its present settings. Standard library only."""

from __future__ import annotations

import os
import time

from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault, journal, run

#: Units without a process have only the time at which they became active.
STARTED = ("ExecMainStartTimestampMonotonic", "ActiveEnterTimestampMonotonic")
PROPERTIES = ("LoadState", "ActiveState", "SubState", "UnitFileState", "NeedDaemonReload", *STARTED)
POLL_SECONDS = 0.2


def look(name, properties=PROPERTIES):
    """Properties of a unit; empty if systemd does not answer."""
    _status, out, _err = run(["systemctl", "show", name, "--property=" + ",".join(properties)], 30)
    return dict(line.split("=", 1) for line in out.splitlines() if "=" in line)


def settled(name, seconds, wait=True):
    """A unit as `look` has it, once nobody else's stop or (with `wait`) start of it is under way, or after `seconds`.

    Who asks in the middle of a restart would start what starts anyway, and call that a change.
    """
    deadline = time.monotonic() + seconds
    while True:
        unit = look(name)
        state = unit.get("ActiveState")
        # Until its next try a unit that has failed waits, and nothing is under way.
        starting = wait and state == "activating" and unit.get("SubState") != "auto-restart"
        if not (starting or state == "deactivating") or time.monotonic() >= deadline:
            return unit
        time.sleep(POLL_SECONDS)


def changed_at(path):
    """When a file came to be what it is; a copy or a rename with an old time of modification is as young as it is."""
    found = os.stat(path)
    return max(found.st_mtime, found.st_ctime)


def outdated(unit, files, since=0):
    """Is a file, or a moment, younger than the process?"""
    monotonic = next(unit[name] for name in STARTED if name in unit)
    age = time.clock_gettime(time.CLOCK_MONOTONIC) - int(monotonic) / 1e6
    started = time.time() - age
    return started < since or any(os.path.exists(file) and changed_at(file) > started for file in files)


def steps(name, unit, files, since=0, wait=True):
    """The commands of systemctl that make a loaded unit run with its present settings, now and after a reboot.

    Those that do not wait leave a unit to it that is starting.
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
    """Run the commands that `steps` found, each with a limit. Fault with the unit's last words."""
    for step in todo:
        if step[0] in ("start", "restart"):
            # systemd refuses a unit that was started often of late, even by us. Where it has not loaded the unit this
            # fails, and there it has counted nothing.
            run(["systemctl", "reset-failed", name], 30)
        status, _out, err = run(["systemctl", *step], seconds)
        if status:
            raise Fault(f"systemctl {' '.join(step)}: {err}; {journal(name)}")
