# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Decide whether a failed concern degrades or fails the node.

The consequences, up to the exit code, are described in `hyperpod_lifecycle.errors`.
"""

from __future__ import annotations

from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase

from hyperpod_lifecycle.events import reason


class ActionModule(ActionBase):  # type: ignore[misc]
    """The action `hyperpod.lifecycle.verdict`; it changes nothing."""

    _requires_connection = False
    _VALID_ARGS = frozenset({"required"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Fail with the reason of the failed task if the concern is required."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        failed, found = variables["ansible_failed_task"], variables["ansible_failed_result"]
        result["msg"] = f"{failed['name']}: {reason(found)}"
        result["failed"] = boolean(self._task.args["required"])
        return result
