#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# No builtin: two processes try locks, also as Slurm's user, in a child process, so that a hanging file server cannot
# block the run.
"""Verify that a directory and its locks are shared with other nodes."""

from __future__ import annotations

DOCUMENTATION = r"""
module: shared_folder_verify
short_description: Verify that a directory is shared, writable and has cluster-wide locks
description:
  - The directory must be on a mounted file system that other nodes can mount, with locks that hold on all of them,
    judged by the type and options of the mount. A file is written to disk, locked, found locked, and deleted.
  - The module changes nothing. Operations that may hang run in a child process with a time limit.
extends_documentation_fragment:
  - hyperpod.lifecycle.attributes
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
options:
  path:
    description: Directory to check.
    type: path
    required: true
  trusted:
    description: Skip the check of the mount's type and options.
    type: bool
    default: false
  user:
    description: User that writes the file.
    type: str
    default: root
  wait_seconds:
    description: Seconds to try.
    type: int
    default: 60
  remedy:
    description: End of the message if the directory is not shared, or access to it is denied.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Verify the shared directory
  hyperpod.lifecycle.shared_folder_verify:
    path: /fsx
    remedy: correct controllers_shared_dir
"""

RETURN = r"""
source:
  description: Source of the mount.
  type: str
  returned: success
"""

import errno
import fcntl
import os
import pwd
import time
from functools import partial
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import mounts
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.leftovers import own_name, sweep
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.limited import limited
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.waits import pause

ATTEMPT_SECONDS = 30
#: Errors that are not retried, and their remedy; empty for the caller's remedy.
FINAL = {
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ELOOP), ""),
    **dict.fromkeys((errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP), "use a file system that has locks"),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "delete files there, or enlarge it"),
    errno.EROFS: "mount it read-write",
}


def wake(path):
    """Open the directory, which triggers automount. Return the path without symbolic links."""
    os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY))
    return os.path.realpath(path)


def locked_elsewhere(path):
    """Return whether another process finds the file locked."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        found = b"0"
        try:
            descriptor = os.open(path, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                found = b"1"
            os.write(writer, found)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        found = pipe.read()
    os.waitpid(pid, 0)
    return found == b"1"


def probe(path, kind, user):
    """Write, lock and delete a file, and delete those of killed runs. Return the error; empty if there is none."""
    if user.pw_uid != os.getuid():
        os.setgroups([])
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
    sweep(path, kind)
    file = os.path.join(path, f".{own_name(kind)}-{os.urandom(6).hex()}")
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        os.write(descriptor, b"hyperpod-lifecycle was here; this file can be deleted\n")
        os.fsync(descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return "" if locked_elsewhere(file) else "two processes get one lock there"
    finally:
        os.close(descriptor)
        os.unlink(file)


def judge(path, trusted):
    """Return the mount of the directory. Raises Fault if other nodes cannot share it."""
    mount = mounts.covering(mounts.parse(Path("/proc/self/mountinfo").read_text(encoding="utf-8")), path)
    said = "" if trusted else mounts.unshared(mount)
    if said:
        raise Fault(said)
    return mount


def usable(wanted, check_mode):
    """Return the mount once the directory can be used. Raises OSError, immediately if another attempt is useless."""
    path, kind = wanted["path"], f"probe-{wanted['user']}"
    deadline = time.monotonic() + wanted["wait_seconds"]
    while True:
        try:
            real = limited(lambda: wake(path), ATTEMPT_SECONDS)
            mount = judge(real, wanted["trusted"])
            user = pwd.getpwnam(wanted["user"])
            said = "" if check_mode else limited(partial(probe, real, kind, user), ATTEMPT_SECONDS)
        except OSError as error:
            if error.errno in FINAL or time.monotonic() >= deadline:
                raise
        else:
            if said:
                raise Fault(said)
            return mount
        pause(0.5)


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "trusted": {"type": "bool", "default": False},
            "user": {"type": "str", "default": "root"},
            "wait_seconds": {"type": "int", "default": 60},
            "remedy": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    path, remedy = module.params["path"], module.params["remedy"]
    if module.check_mode and not os.path.isdir(path):
        module.exit_json(source="", msg=f"{path} is not there yet")
    try:
        mount = usable(module.params, module.check_mode)
    except (Fault, KeyError) as fault:
        module.fail_json(msg=f"{path} cannot be shared by several controllers: {fault}; {remedy}")
    except OSError as error:
        remedy = FINAL.get(error.errno, "see the state of the file server, and dmesg") or remedy
        module.fail_json(msg=f"{path}: {module.params['user']} cannot use it: {error.strerror or error}; {remedy}")
    module.exit_json(source=mount.source)


if __name__ == "__main__":
    main()
