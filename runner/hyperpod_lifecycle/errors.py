# SPDX-License-Identifier: Apache-2.0
"""Exit codes and the errors that carry them.

From a failed task to the exit code of a node:

1. A concern that a node can do without has one block in its `tasks/main.yml`, with the action `verdict` alone in its
   rescue. Unless `<concern>_required` is set, that succeeds and Ansible goes on with the next concern. Else it fails
   with the reason of the failed task, and the node takes no part in what follows. Other concerns have no rescue.
2. `Events` folds what Ansible tells: the concern of a failed task is "degraded", or "failed" once the statistics say
   that the node did not go on. A concern whose `<concern>_enabled` is false is "off".
3. `run` judges by the statistics, not by Ansible's exit code alone. It raises `InputError` if the settings are wrong,
   `ConcernFailed` if a required concern failed or Ansible stopped early, `TimedOut` or `InterruptedRun` if it ended
   Ansible itself. Degraded concerns raise nothing.
4. Each of these errors has its `ExitCode`. `Report.end` makes status, reason and remedy of it, and the last line.
5. `cli` exits with that code, and `on_create.sh` with the same. HyperPod fails the node unless it is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum


class ExitCode(IntEnum):
    """What a finished run says to its caller; the table in README has the same words."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> ExitCode:
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    OK = (
        0,
        "all required concerns succeeded and were verified; the last line has what is still pending on other nodes, "
        "and any optional concern that failed (`degraded`)",
    )
    INTERNAL = (
        1,
        "`SAGEMAKER_RESOURCE_CONFIG_PATH` names a file that does not exist, `on_create.sh` could not install the "
        "program, a file could not be written, or a bug in hyperpod-lifecycle",
    )
    USAGE = 2, "wrong command line"
    INPUT = 3, "a file or a setting is wrong: the message names file, key and remedy; nothing was changed"
    FAILED = 4, "a required concern failed, or Ansible stopped early"
    TIMEOUT = 5, "the run took longer than `--timeout`"
    LOCKED = 6, "another run holds this node and did not end within `--lock-wait`"
    INTERRUPTED = 130, "stopped by SIGINT, SIGTERM or SIGHUP"


@dataclass(frozen=True)
class Problem:
    """One fault of one input: where it is, what was found, what to do."""

    file: str
    key: str  #: JSON path such as ``worker_groups[0].partition_name``, or ``line 3 column 7``
    found: str
    remedy: str

    def __str__(self) -> str:
        where = f"{self.file}: {self.key}" if self.key else self.file
        return f"{where}: {self.found}; {self.remedy}"


class LifecycleError(Exception):
    """An expected failure: printed as one message, never as a traceback."""

    exit_code = ExitCode.INTERNAL


class InputError(LifecycleError):
    """Everything that is wrong with the input, found before anything changes."""

    exit_code = ExitCode.INPUT

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))
