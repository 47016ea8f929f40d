# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide what it means for the node that a concern has failed.

What follows from that, up to the exit code, is described in `hyperpod_lifecycle.errors`.
"""

from __future__ import annotations

DOCUMENTATION = r"""
name: verdict
short_description: Decide what it means for the node that a concern has failed
description:
  - For the C(rescue) of a concern that a node can do without. Succeeds, and the node is degraded, unless O(required).
author: hyperpod-lifecycle maintainers
options:
  required:
    description: Whether a node on which the concern fails is a failed one.
    type: bool
    required: true
"""

from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase

from hyperpod_lifecycle.events import reason


class ActionModule(ActionBase):  # type: ignore[misc]
    """The action `hyperpod.lifecycle.verdict`; it changes nothing."""

    _requires_connection = False
    _VALID_ARGS = frozenset({"required"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Fail with the reason of the task that has failed, if the concern is required."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        failed, found = variables["ansible_failed_task"], variables["ansible_failed_result"]
        result["msg"] = f"{failed['name']}: {reason(found)}"
        result["failed"] = boolean(self._task.args["required"])
        return result
