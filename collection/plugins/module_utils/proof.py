# SPDX-License-Identifier: Apache-2.0
"""A container image made of this node's own files, so that a proof needs no registry. Standard library only."""

from __future__ import annotations

import io
import os
import re
import tarfile

from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault, run

#: What runs in it, and a file that a container needs to have been set up.
PROGRAM = "/usr/bin/cat"
MARK = "/etc/hyperpod-proof"


def libraries(listed):
    """The files in the output of ldd."""
    return re.findall(r"(?:=> |^\s*)(/\S+) \(0x", listed, re.MULTILINE)


def archive(text):
    """A tar archive of a tiny system: `cat`, its libraries, and a file with this text."""
    status, out, err = run(["ldd", PROGRAM], 30)
    if status:
        raise Fault(f"ldd {PROGRAM}: {err or out}")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path in [PROGRAM, *libraries(out)]:
            with open(os.path.realpath(path), "rb") as file:
                _add(tar, path, file.read(), 0o755)
        _add(tar, MARK, text.encode(), 0o644)
    return buffer.getvalue()


def _add(tar, path, content, mode):
    member = tarfile.TarInfo(path.lstrip("/"))
    member.size, member.mode = len(content), mode
    tar.addfile(member, io.BytesIO(content))
