# SPDX-License-Identifier: Apache-2.0
"""Run containers of an image made of this node's own files, which needs no registry. Standard library only."""

from __future__ import annotations

import io
import os
import re
import tarfile

from ansible_collections.hyperpod.lifecycle.plugins.module_utils import leftovers
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault, run

SECONDS = 120
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


def prove_docker(users):
    """Run a container as each user. Fault if one cannot."""
    image, text = leftovers.own_name("proof"), f"proof {os.getpid()}"
    remove_left_images()
    try:
        status, _out, err = run(["docker", "import", "-", image], SECONDS, archive(text))
        if status:
            raise Fault(f"Docker does not run a container: docker import: {err}")
        for user in users:
            command = ["docker", "run", "--rm", "--pull=never", "--network=none", image, PROGRAM, MARK]
            status, out, err = run(as_user(user, *command), SECONDS)
            if status or out != text:
                raise Fault(f"Docker does not run a container: docker run as {user} ends with {status}: {err or out}")
    finally:
        _remove_image(image)


def remove_left_images():
    """Remove images and containers of Docker that killed runs have left."""
    _status, out, _err = run(["docker", "images", "--format={{.Repository}}"], SECONDS)
    for image in set(out.split()):
        if leftovers.is_left(image, "proof"):
            _remove_image(image)


def _remove_image(image):
    """Remove an image, and what a killed run has made of it."""
    _status, out, _err = run(["docker", "ps", "--all", "--quiet", f"--filter=ancestor={image}"], SECONDS)
    if out.split():
        run(["docker", "rm", "--force", *out.split()], SECONDS)
    run(["docker", "rmi", "--force", image], SECONDS)


def prove_enroot(users):
    """Start a container as each user. Fault if one cannot."""
    name, text = leftovers.own_name("proof"), f"proof {os.getpid()}"
    with leftovers.own_folder("proof") as folder:
        os.chmod(folder, 0o755)  # noqa: S103 the user reads it
        image = squashed(text, folder)
        for user in users:
            remove_left_containers(user)
            _start(user, image, name, text)


def _start(user, image, name, text):
    """Fault unless this user can start it."""
    try:
        for verb, words in (("create", ("--name", name, image)), ("start", (name, PROGRAM, MARK))):
            status, out, err = run(as_user(user, "enroot", verb, *words), SECONDS)
            if status or (verb == "start" and out != text):
                said = f"enroot {verb} as {user} ends with {status}: {err or out}"
                raise Fault(f"Enroot does not start a container: {said}")
    finally:
        run(as_user(user, "enroot", "remove", "--force", name), SECONDS)


def remove_left_containers(user):
    """Remove containers of this user's Enroot that killed runs have left."""
    _status, out, _err = run(as_user(user, "enroot", "list"), SECONDS)
    for name in out.split():
        if leftovers.is_left(name, "proof"):
            run(as_user(user, "enroot", "remove", "--force", name), SECONDS)
