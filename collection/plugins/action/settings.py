# SPDX-License-Identifier: GPL-3.0-or-later
"""Reject mistyped variables and placeholders before the first task that changes anything."""

from __future__ import annotations

DOCUMENTATION = r"""
name: settings
short_description: Check the variables of this host against the argument specs of all roles of the collection
description:
  - Fails with every variable that has a role's prefix and that no argument spec knows, with every placeholder,
    with every value that is not of the type that the argument spec says, and with every requirement of a role's
    C(meta/plan.yml) that is not met.
  - C(hyperpod-lifecycle) has converted values such as the text V(no) before this task runs. Plain C(ansible-playbook)
    has not, and this task refuses them.
author: hyperpod-lifecycle maintainers
"""

from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from hyperpod_lifecycle.in_ansible.answer import check_settings

ROLES = Path(__file__).parents[2] / "roles"


class ActionModule(ActionBase):  # type: ignore[misc]
    """The action `hyperpod.lifecycle.settings`; it takes no arguments and changes nothing."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Compare this host's variables with what the roles document."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        made = check_settings(task_vars or {}, ROLES, self._loader)
        found = [*made.problems, *made.untyped]
        if found:
            result |= {"failed": True, "msg": "\n".join(map(str, found))}
        return result
