# SPDX-License-Identifier: GPL-3.0-or-later
"""Run ansible-playbook, after writing a description of the plays, with typed settings and resolved tags.

Usage: python -m hyperpod_lifecycle.in_ansible.playbook ANSWER MODULES ARGUMENT…

ANSWER is the file to write, MODULES the directory of packed modules or empty, and the rest are arguments for
ansible-playbook; with `--list-hosts` no task runs. One process does both: Ansible takes most of a second to start.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible import context
from ansible.cli.playbook import PlaybookCLI
from ansible.plugins.loader import filter_loader, test_loader
from ansible.utils.context_objects import CLIArgs
from ansible.utils.unsafe_proxy import wrap_var

from hyperpod_lifecycle.errors import ExitCode, InputError, Problem
from hyperpod_lifecycle.in_ansible import answer, module_cache
from hyperpod_lifecycle.paths import write_private
from hyperpod_lifecycle.selection import Play, selection


class AskedPlaybook(PlaybookCLI):  # type: ignore[misc]
    """The command ansible-playbook for one node."""

    def __init__(self, arguments: list[str]) -> None:
        self._answer, self._modules, *rest = arguments
        super().__init__(["ansible-playbook", *rest])

    def _play_prereqs(self) -> tuple[Any, Any, Any]:
        """Called between reading the inventory and loading the playbook."""
        loader, inventory, manager = super()._play_prereqs()
        try:
            tags, skip_tags = self._ask(loader, inventory, manager)
        except InputError as error:
            self._write({"node_type": "", "plays": []}, error.problems)
            raise SystemExit(error.exit_code) from None
        if context.CLIARGS["listhosts"]:
            raise SystemExit(ExitCode.OK)
        context.CLIARGS = CLIArgs({**context.CLIARGS, "tags": tags, "skip_tags": skip_tags})
        self._prepare()
        return loader, inventory, manager

    def _ask(self, loader: Any, inventory: Any, manager: Any) -> tuple[list[str], list[str]]:
        """Write the answer and return the tags to run and to skip."""
        made = answer.settings(loader, inventory, manager)
        if made.problems:
            raise InputError(made.problems)
        # Above everything else that could set them; what was rendered once is no template any more.
        manager.extra_vars.update(wrap_var(made.values))
        (playbook,) = context.CLIARGS["args"]
        said = answer.describe(playbook, loader, inventory, manager)
        plays = list(map(Play.from_dict, said["plays"]))
        if context.CLIARGS["listhosts"]:
            said["shows"] = answer.shown(loader, inventory, manager)
        chosen = selection(plays, context.CLIARGS["tags"], context.CLIARGS["skip_tags"] or ())
        self._write(said)
        return chosen

    def _write(self, said: Mapping[str, Any], problems: Iterable[Problem] = ()) -> None:
        faults = [[problem.file, problem.key, problem.found, problem.remedy] for problem in problems]
        write_private(Path(self._answer), json.dumps({**said, "problems": faults}))

    def _prepare(self) -> None:
        # Each task runs in a fork of this process and would otherwise load these again.
        for plugins in (filter_loader, test_loader):
            list(plugins.all())
        if self._modules:
            module_cache.keep(Path(self._modules))


if __name__ == "__main__":
    AskedPlaybook.cli_executor(sys.argv[1:])
