# SPDX-License-Identifier: Apache-2.0
"""Standard output and standard error that neither a closed reader nor a missing stream can break."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any


class Output(io.FileIO):
    """Output stream that ignores a closed reader, as in `plan | head -1`, so that the exit code is not affected."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            return len(data)


def protect(name: str) -> None:
    """Replace the stream `name` of `sys`: by an Output, or by the null device if the caller has closed it."""
    stream = getattr(sys, name)
    if stream is None:  # closed by the caller
        setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 # open until the process ends
    elif stream is getattr(sys, f"__{name}__"):
        raw = io.BufferedWriter(Output(stream.fileno(), "w", closefd=False))
        lines = stream.line_buffering
        setattr(sys, name, io.TextIOWrapper(raw, stream.encoding, "backslashreplace", line_buffering=lines))
