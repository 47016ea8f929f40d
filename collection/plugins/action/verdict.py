# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide what it means for the node that a concern has failed.

From a failed task to the exit code:

1. A concern that a node can do without has one block in its ``tasks/main.yml``, whose ``rescue`` is this action alone,
   and a setting ``<role>_required``. Every other concern has neither: its failing task ends the run on this node.
2. Ansible runs the ``rescue`` once a task of the block has failed. Where the concern is not required this action
   succeeds; Ansible counts a rescued task, goes on with the next concern, and ends with 0. Where it is required this
   action fails with the first task's reason, and Ansible ends with 2.
3. The runner's ``events`` see the failed task as it happens. Its concern is degraded, unless Ansible's statistics say
   at the end that the node was lost, which makes it failed.
4. ``report`` has the status of the run from that: degraded, exit code 0; or failed, exit code 4. The last line names
   the concern, the task and the reason.
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
