# SPDX-License-Identifier: Apache-2.0
"""What tests do on the nodes of a lab."""

from __future__ import annotations

import re
import subprocess
import time
from typing import Any

from hyperpod_lab.lab import Lab

CONTROLLER, LOGIN, COMPUTE = "controller-machine-1", "login-group-1", "compute-nodes-1"
#: The node's own settings.
GROUP_VARS = "/etc/hyperpod-lifecycle/inventory/group_vars"
#: Where plain Ansible may keep packed modules, as our own runs do.
PACKED = "/run/hyperpod-lifecycle/modules"

#: Ends Ansible the hard way. With KILL_AT, the place of a task, while that task runs; without, after so many changes.
#: What ran to its end is printed with its place.
KILLER = """\
import os, signal, threading
from ansible.plugins.callback import CallbackBase

class CallbackModule(CallbackBase):
    CALLBACK_VERSION, CALLBACK_NAME, CALLBACK_NEEDS_ENABLED = 2.0, "killer", True

    def v2_playbook_on_task_start(self, task, is_conditional):
        if task.get_path() == os.environ["KILL_AT"]:
            os.write(1, f"killed at {task.get_name()}\\n".encode())
            threading.Timer(float(os.environ["KILL_AFTER"]), os.killpg, (0, signal.SIGKILL)).start()

    left = int(os.environ["KILL_CHANGES"])

    def v2_runner_on_ok(self, result):
        os.write(1, f"ran {result._task.get_path()}\\n".encode())
        self.left -= bool(result._result.get("changed"))
        if not self.left and not os.environ["KILL_AT"]:
            os.write(1, f"killed after {result._task.get_name()}\\n".encode())
            os.killpg(0, signal.SIGKILL)
"""
KILLED, ENDED = 137, 0


def bash(lab: Lab, node: str, script: str, *, check: bool = True, **options: Any) -> str:
    """What a script says; without ``check`` with its standard error, however it ends."""
    done = lab.exec(node, ["timeout", "240", "bash", "-c", script], check=check, **options)
    return done.stdout + ("" if check else done.stderr)


def wait_for(lab: Lab, node: str, command: str, seconds: float = 60) -> float:
    """Until a shell command succeeds in a node; how long that took."""
    begin = time.monotonic()
    while (done := lab.exec(node, ["timeout", "60", "bash", "-c", command])).returncode != 0:
        assert time.monotonic() < begin + seconds, f"{command}: {done.stdout}{done.stderr}"
        time.sleep(0.5)
    return time.monotonic() - begin


def apply(lab: Lab, node: str, *words: str, tags: str = "") -> subprocess.CompletedProcess[str]:
    """A run on a node, however it ends."""
    command = ["hyperpod-lifecycle", "apply", *(["--tags", tags] if tags else []), *words]
    return lab.exec(node, ["timeout", "200", *command], timeout=240)


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stdout + done.stderr).strip().splitlines()[-1]


def must(done: subprocess.CompletedProcess[str]) -> str:
    """The last line of a run that has to end well."""
    assert done.returncode == 0, done.stdout + done.stderr
    return last_line(done)


def changed_tasks(summary: str) -> int:
    """The number of changes that the last line of a good run names."""
    match = re.search(r": (?:ok|pending): \d+ concerns?, (\d+) changed", summary)
    assert match, summary
    return int(match[1])


def applied(lab: Lab, node: str, *words: str, tags: str = "") -> int:
    """How much a good run changed."""
    return changed_tasks(must(apply(lab, node, *words, tags=tags)))


def refused(lab: Lab, node: str, *words: str, tags: str = "") -> str:
    """Everything that a run says in which a concern must fail."""
    done = apply(lab, node, *words, tags=tags)
    assert done.returncode == 4, done.stdout + done.stderr
    assert "failed: " in last_line(done)
    return done.stdout + done.stderr


def killed(lab: Lab, node: str, tags: str, at: str = "", after: float = 0, changes: int = 1) -> tuple[int, list[str]]:
    """How a run ended that `KILLER` was told to end, and what that said."""
    lab.put(node, KILLER.encode(), "/root/kill/killer.py")
    playbook = (
        "cd /; ANSIBLE_CALLBACK_PLUGINS=/root/kill ANSIBLE_CALLBACKS_ENABLED=killer "
        f"KILL_AT={at} KILL_AFTER={after} KILL_CHANGES={changes} timeout 200 "
        "/opt/hyperpod-lifecycle/current/bin/python3 -I -m hyperpod_lifecycle.in_ansible.playbook /root/kill/answer "
        f"{PACKED} -i /etc/hyperpod-lifecycle/inventory --tags {tags} hyperpod.lifecycle.site; exit $?"
    )
    done = lab.exec(node, ["bash", "-c", playbook], timeout=240)
    assert done.returncode in (KILLED, ENDED), done.stdout + done.stderr
    return done.returncode, [line for line in done.stdout.splitlines() if line.startswith(("ran ", "killed "))]
