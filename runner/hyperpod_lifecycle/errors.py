# SPDX-License-Identifier: Apache-2.0
"""Exit codes and the exceptions that have them.

From a failed task to the exit code of a node:

1. A task declares with the action `verdict` that its concern is "blocked" or "pending", which is no failure: the
   platform, the hardware or a person keeps jobs from the node, or another node is not ready yet.
2. An optional concern has one block in its `tasks/main.yml`, whose rescue is the action `verdict`. Unless
   `<concern>_required` is true, the action succeeds and Ansible continues with the next concern. Otherwise it fails
   with the reason of the failed task, and Ansible stops for this node. Required concerns have no rescue.
3. `Events` sets the status of the concern of a failed task to "degraded", or to "failed" if the statistics say that
   Ansible stopped for this node. A concern whose `<concern>_enabled` is false is "off".
4. `ansible_run` evaluates the statistics, not only Ansible's exit code. It raises `InputError` if a setting is wrong,
   `ConcernFailed` if a required concern failed or Ansible stopped early, and `TimedOut` or `InterruptedRun` if it
   terminated Ansible. Degraded, blocked and pending concerns raise nothing.
5. Each of these exceptions has an `ExitCode`. `Report.end` derives status, reason, remedy and the last line from it.
6. `cli` and then `on_create.sh` exit with that code. HyperPod fails the node unless it is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes with their meanings, from which the table in `docs/` is generated."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> ExitCode:
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    OK = (
        0,
        "no required concern failed. `ok`: Slurm would start a job here now; `pending`: another node or the platform "
        "is not ready yet; `degraded`: an optional concern failed; `blocked`: the platform, the hardware or a person "
        "keeps jobs from this node",
    )
    INTERNAL = (
        1,
        "`SAGEMAKER_RESOURCE_CONFIG_PATH` names a file that does not exist, `on_create.sh` could not install the "
        "program, a file could not be written, or a bug in hyperpod-lifecycle",
    )
    USAGE = 2, "wrong command line"
    INPUT = 3, "a file or a setting is wrong: the message names file, key and remedy; nothing was changed"
    FAILED = 4, "`failed`: a required concern failed, or Ansible stopped early"
    TIMEOUT = 5, "the run took longer than `--timeout`"
    LOCKED = 6, "another run holds this node and did not end within `--lock-wait`"
    INTERRUPTED = 130, "stopped by SIGINT, SIGTERM or SIGHUP"


@dataclass(frozen=True)
class Problem:
    """One problem of one input: its place, what was found, what to do."""

    file: str
    key: str  #: JSON path such as ``worker_groups[0].partition_name``, or ``line 3 column 7``
    found: str
    remedy: str

    def __str__(self) -> str:
        where = f"{self.file}: {self.key}" if self.key else self.file
        return f"{where}: {self.found}; {self.remedy}"


class LifecycleError(Exception):
    """Base of expected errors, which are printed as one message without a traceback."""

    exit_code = ExitCode.INTERNAL


class InputError(LifecycleError):
    """All problems of the input, found before the node is changed."""

    exit_code = ExitCode.INPUT

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))
