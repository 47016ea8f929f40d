# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Decide whether a failed concern degrades or fails the node, or declare that a concern is blocked or pending.

The consequences, up to the exit code, are described in `hyperpod_lifecycle.errors`.
"""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase

from hyperpod_lifecycle.events import reason
from hyperpod_lifecycle.verdicts import DECLARED


class ActionModule(ActionBase):  # type: ignore[misc]
    """The action `hyperpod.lifecycle.verdict`; it changes nothing."""

    _requires_connection = False
    _VALID_ARGS = frozenset({"required", "status", "reason"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Declare the status of this concern, or fail with the reason of the failed task if it is required."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        if "status" in self._task.args:
            return {**result, **self._declare(variables)}
        failed, found = variables["ansible_failed_task"], variables["ansible_failed_result"]
        result["msg"] = f"{failed['name']}: {reason(found)}"
        result["failed"] = boolean(self._task.args["required"])
        return result

    def _declare(self, variables: dict[str, Any]) -> dict[str, Any]:
        """Return the verdict for the report, and all verdicts of the run so far as the fact `verdicts`."""
        status, why = self._task.args["status"], self._task.args.get("reason", "")
        if status not in DECLARED or bool(why) == (status == "ok"):
            allowed = ", ".join(DECLARED)
            raise AnsibleActionFail(f"status {status!r}, reason {why!r}: use one of {allowed}, with a reason unless ok")
        verdict = {"status": status, "reason": why}
        known = variables.get("ansible_facts", {}).get("verdicts", {})
        return {
            "verdict": verdict,
            "msg": why or status,
            "ansible_facts": {"verdicts": {**known, variables["role_name"]: verdict}},
        }
