# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Reject unknown variables, invalid values and placeholders before the first task that changes anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from hyperpod_lifecycle.in_ansible.answer import check_settings

ROLES = Path(__file__).parents[2] / "roles"


class ActionModule(ActionBase):  # type: ignore[misc]
    """The action `hyperpod.lifecycle.settings`. It takes no arguments and changes nothing."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Check this host's variables; the result fails with all problems."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        made = check_settings(task_vars or {}, ROLES, self._loader)
        found = [*made.problems, *made.untyped]
        if found:
            result |= {"failed": True, "msg": "\n".join(map(str, found))}
        return result
