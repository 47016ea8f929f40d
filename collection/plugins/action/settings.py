# SPDX-License-Identifier: GPL-3.0-or-later
"""Reject unknown variables, invalid values and placeholders before the first task that changes anything."""

from __future__ import annotations

DOCUMENTATION = r"""
name: settings
short_description: Check variables against the argument specs of all roles
description:
  - Fails if a variable with a role's prefix is not in an argument spec, if a value is a placeholder or has the wrong
    type, or if a requirement in a role's C(meta/plan.yml) is not met. The message lists all problems.
  - C(hyperpod-lifecycle) converts values such as the string V(no) before this task runs. Plain C(ansible-playbook)
    does not, so this task rejects them.
author: hyperpod-lifecycle maintainers
"""

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
