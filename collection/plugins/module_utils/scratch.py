# SPDX-License-Identifier: Apache-2.0
"""Which disk of a node is for container data. Standard library only: it runs on the node."""

from __future__ import annotations

from ansible_collections.hyperpod.lifecycle.plugins.module_utils import mounts

#: Types that the kernel keeps on a disk of this node.
LOCAL = ("btrfs", "ext2", "ext3", "ext4", "f2fs", "xfs", "zfs")

#: The properties that `state` reads.
PROPERTIES = ("LoadState", "ActiveState", "Result", "Job", "ExecMainExitTimestampMonotonic")


def is_disk(mountinfo, path):
    """Is a disk other than the root disk mounted at exactly this path?"""
    table = mounts.parse(mountinfo)
    here, root = mounts.at(table, path), mounts.at(table, "/")
    if not here or here[-1].kind not in LOCAL:
        return False
    # A folder of the root disk that is bound there has the root disk's source.
    return not root or here[-1].source != root[-1].source


def is_shared(mountinfo, path):
    """Is a shared file system mounted at exactly this path?"""
    here = mounts.at(mounts.parse(mountinfo), path)
    return bool(here) and any(mounts.same_type(here[-1].kind, kind) for kind in mounts.MOUNTED_TYPES)


def state(unit):
    """How far the unit is that mounts the disk: absent, waiting, done, failed or unknown."""
    load, active = unit.get("LoadState", ""), unit.get("ActiveState", "")
    if load in ("not-found", "masked"):
        return "absent"
    if load != "loaded":
        return "failed" if load else "unknown"
    if active in ("activating", "reloading") or unit.get("Job", "") not in ("", "0"):
        return "waiting"
    if active in ("active", "failed"):
        return "done" if active == "active" else "failed"
    # A unit that does its work and ends is inactive again.
    ended = unit.get("ExecMainExitTimestampMonotonic", "0") not in ("", "0")
    return "done" if ended and unit.get("Result") == "success" else "unknown"


def excuse(name, path, found, seconds):
    """Why the disk of this unit is not used though the unit is there; empty if there is nothing to say."""
    return {
        "waiting": f"{name} had not mounted {path} after {seconds} s",
        "failed": f"{name} has failed, so {path} is not mounted",
        "unknown": f"{name} has not run, so {path} is not mounted",
    }.get(found, "")


def gibibytes(size):
    """Bytes, for people."""
    return f"{size / 2**30:.0f} GiB"
