# SPDX-License-Identifier: Apache-2.0
"""Arguments that no command takes: empty ones, and numbers such as nan and inf.

An empty argument, often an unset shell variable, would otherwise mean everything, or the working directory.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import typer
from typer.core import TyperCommand


class Command(TyperCommand):
    """A command that refuses such arguments."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as usual. Raises BadParameter, a usage error."""
        for before, arg in pairwise(["", *args]):
            option = before if before.startswith("-") else "an argument"
            if arg == "" or (arg.startswith("--") and arg.endswith("=")):
                option = arg.rstrip("=") or option
                raise typer.BadParameter("the value is empty; give one, or leave it out", ctx, param_hint=option)
        rest = super().parse_args(ctx, args)
        for param in self.params:
            value = ctx.params.get(param.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise typer.BadParameter(f"{value} is not a finite number", ctx, param_hint=param.opts[0])
        return rest
