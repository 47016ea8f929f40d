# SPDX-License-Identifier: GPL-3.0-or-later
"""Refuse mistyped variables and placeholders, on the controller side, before the first task that changes anything."""

from __future__ import annotations

DOCUMENTATION = r"""
name: settings
short_description: Check the variables of this host against the argument specs of all roles of the collection
description:
  - Fails with every variable that has a role's prefix and that no argument spec knows, with every placeholder,
    and with every value that is not of the type that the argument spec says.
author: hyperpod-lifecycle maintainers
"""

from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from hyperpod_lifecycle.settings import known_variables, problems
from hyperpod_lifecycle.values import wrong_values

ROLES = Path(__file__).parents[2] / "roles"


class ActionModule(ActionBase):  # type: ignore[misc]
    """The action `hyperpod.lifecycle.settings`; it takes no arguments and changes nothing."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Compare this host's variables with what the roles document."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        found = [*problems(variables, known_variables(ROLES)), *wrong_values(variables, ROLES, self._loader)]
        if found:
            # The runner makes its own message and exit code of the single problems.
            result |= {
                "failed": True,
                "msg": "\n".join(map(str, found)),
                "input_problems": [[fault.file, fault.key, fault.found, fault.remedy] for fault in found],
            }
        return result
