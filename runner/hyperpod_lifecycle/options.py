# SPDX-License-Identifier: Apache-2.0
"""What a run is asked for: the options of a command, and the playbook."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hyperpod_lifecycle.question import SITE


@dataclass(frozen=True)
class Options:
    """The options of a run."""

    tags: tuple[str, ...] = ()
    skip_tags: tuple[str, ...] = ()
    extra_vars: Mapping[str, Any] = field(default_factory=dict)  #: settings for this run alone
    extra_words: tuple[str, ...] = ()  #: the same as words of the command line that may be shown
    check: bool = False
    diff: bool = False
    verbosity: int = 0  #: 1: a line per task; 2 and more: also Ansible's own output
    connection: str | None = None  #: "warm" or "local"; None leaves it to the inventory
    timeout: float = 3600.0  #: seconds for everything, waits included
    lock_wait: float = 60.0
    resource_config: Path | None = None
    provisioning_parameters: Path | None = None
    inventory: Path | None = None
    json: bool = False  #: print the report as JSON
    request: tuple[str, ...] = ()  #: another command than `apply`, with its arguments

    @property
    def command(self) -> str:
        """The command line for the same run."""
        words = ["hyperpod-lifecycle", *self.request]
        if not self.request:
            pairs = [("--tags", tag) for tag in self.tags] + [("--skip-tags", tag) for tag in self.skip_tags]
            for name in ("resource_config", "provisioning_parameters", "inventory", "connection"):
                value = getattr(self, name)
                value = value.absolute() if isinstance(value, Path) else value
                pairs += [(f"--{name.replace('_', '-')}", str(value))] if value is not None else []
            for name, default in (("timeout", Options.timeout), ("lock_wait", Options.lock_wait)):
                value = getattr(self, name)
                pairs += [(f"--{name.replace('_', '-')}", f"{value:g}")] if value != default else []
            words += ["apply", *(word for pair in pairs for word in pair), *self.extra_words]
        flags = {"--check": self.check, "--diff": self.diff, "--json": self.json}
        words += [flag for flag, given in flags.items() if given]
        words += [f"-{'v' * self.verbosity}"] if self.verbosity else []
        return shlex.join(words)


@dataclass(frozen=True)
class Site:
    """The playbook to run and its location; the defaults apply to an installed package."""

    playbook: str = SITE
    collections: Path | None = None  #: folder that holds `ansible_collections`, unless Ansible finds it by itself
    checkout: Path | None = None  #: the source tree we run from, if we do
