# SPDX-License-Identifier: Apache-2.0
"""Files on their way into a node."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path


def tar(files: Mapping[str, Path | bytes], mode: int | None) -> bytes:
    """An archive owned by root of files and folders at absolute paths; ``mode`` None keeps the files' own."""

    def owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        if mode is not None and member.isfile():
            member.mode = mode
        return member

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for dest, source in files.items():
            if isinstance(source, Path):
                archive.add(source, arcname=dest.lstrip("/") or ".", filter=owned_by_root)
            else:
                member = owned_by_root(tarfile.TarInfo(dest.lstrip("/")))
                member.size, member.mtime = len(source), time.time()
                archive.addfile(member, io.BytesIO(source))
    return buffer.getvalue()
