# SPDX-License-Identifier: Apache-2.0
"""Exit codes and the errors that carry them. README documents this table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum


class ExitCode(IntEnum):
    """What a finished run says to its caller; HyperPod only looks at zero or not."""

    OK = 0  #: every required concern ran on this node and was verified
    INTERNAL = 1  #: resource_config.json named but absent (the platform's contract), or a defect of ours
    USAGE = 2  #: wrong command line
    INPUT = 3  #: a file or setting is wrong; nothing was changed
    FAILED = 4  #: a required concern failed
    TIMEOUT = 5  #: the run took longer than its limit
    LOCKED = 6  #: another run holds this node
    INTERRUPTED = 130  #: stopped by SIGINT, SIGTERM or SIGHUP


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
