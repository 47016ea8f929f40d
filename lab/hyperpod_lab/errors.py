# SPDX-License-Identifier: Apache-2.0
"""The lab's expected failures; printed as one message like every other."""

from __future__ import annotations

from hyperpod_lifecycle.errors import ExitCode, LifecycleError


class LabError(LifecycleError):
    exit_code = ExitCode.FAILED


class LabUsageError(LabError):
    """A request that makes no sense for this lab, or another shape than the one that is up."""

    exit_code = ExitCode.USAGE
