# SPDX-License-Identifier: Apache-2.0
"""A container image made of this node's own files, so that a proof needs no registry. Standard library only."""

from __future__ import annotations

import io
import os
import re
import tarfile

from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault, run

#: What runs in it, a shell for those that need one, and a file that a container must show.
PROGRAM, SHELL = "/usr/bin/cat", "/bin/sh"
MARK = "/etc/hyperpod-proof"


def libraries(listed):
    """The files in the output of ldd."""
    return re.findall(r"(?:=> |^\s*)(/\S+) \(0x", listed, re.MULTILINE)


def files(text):
    """Path and content of each file of a tiny system: `cat`, `sh`, their libraries, and a file with this text."""
    found = {MARK: text.encode()}
    for program in (PROGRAM, SHELL):
        status, out, err = run(["ldd", program], 30)
        if status:
            raise Fault(f"ldd {program}: {err or out}")
        for path in [program, *libraries(out)]:
            with open(os.path.realpath(path), "rb") as file:
                found[path] = file.read()
    return found


def archive(text):
    """It as a tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, content in files(text).items():
            member = tarfile.TarInfo(path.lstrip("/"))
            member.size, member.mode = len(content), 0o755
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def squashed(text, folder):
    """The path of it as a squashfs file, in a folder that is there."""
    root, image = os.path.join(folder, "root"), os.path.join(folder, "image.sqsh")
    for path, content in files(text).items():
        place = os.path.join(root, path.lstrip("/"))
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "wb") as file:
            file.write(content)
        os.chmod(place, 0o755)  # noqa: S103 programs that everybody has
    status, out, err = run(["mksquashfs", root, image, "-all-root", "-noD", "-quiet", "-no-progress"], 60)
    if status:
        raise Fault(f"mksquashfs ends with {status}: {err or out}")
    os.chmod(image, 0o644)
    return image


def as_user(user, *command):
    """The command as this user; what they have set for the client does not count."""
    return ["runuser", "--user", user, "--", "env", "--chdir=/", "HOME=/nonexistent", *command]
