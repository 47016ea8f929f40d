# SPDX-License-Identifier: Apache-2.0
"""Text of mounts, fstab and unit names. Uses the standard library only, and accesses no files."""

from __future__ import annotations

import os
import re
from collections import namedtuple

#: Options that mount ignores: they mark an fstab entry of this role, and one that was not yet mounted successfully.
MARK = "x-hyperpod-lifecycle"
UNPROVEN = "x-hyperpod-lifecycle-unproven"

#: Options with which systemd mounts on first access, after the network is up.
ON_ACCESS = ("_netdev", "x-systemd.automount", "x-systemd.requires=network-online.target")
#: Options for mounting at boot if the kernel has no autofs: before users log in and Slurm starts, whose units follow
#: remote-fs.target. A failure does not stop the boot.
AT_BOOT = ("_netdev", "nofail", "x-systemd.before=remote-fs.target", "x-systemd.requires=network-online.target")
_OURS = {*ON_ACCESS, *AT_BOOT, MARK, UNPROVEN}

#: File system type in fstab, by kind.
FSTAB_TYPES = {"lustre": "lustre", "openzfs": "nfs"}

#: File system types that the kernel shows when mounted, by kind.
MOUNTED_TYPES = {"lustre": ("lustre",), "openzfs": ("nfs", "nfs4")}

#: One line of mountinfo. `root` is the part of the file system that is mounted, `options` are the file system's own.
Mount = namedtuple("Mount", "id parent root path kind source options")

#: One line of fstab, with its place in the file.
Entry = namedtuple("Entry", "number source path kind options")


def unescape(text):
    """Decode a field of mountinfo or fstab, where a blank is ``\\040``."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def escape(text):
    """Encode a field of fstab."""
    return re.sub(r"[ \t\n\\#]", lambda match: f"\\{ord(match.group()):03o}", text)


def parse(mountinfo):
    """Parse ``/proc/self/mountinfo``."""
    mounts = []
    for line in filter(None, mountinfo.split("\n")):
        left, _separator, right = line.partition(" - ")
        identity, parent, _device, root, path, *_rest = left.split(" ")
        kind, source, *options = map(unescape, right.split(" "))
        mounts.append(
            Mount(int(identity), int(parent), unescape(root), unescape(path), kind, source, "".join(options).split(","))
        )
    return mounts


def at(mounts, path):
    """Return the mounts at exactly this path, lowest first."""
    here = [mount for mount in mounts if mount.path == path]
    ids = {mount.id for mount in here}
    ordered = [mount for mount in here if mount.parent not in ids]
    while len(ordered) < len(here):
        on_top = [mount for mount in here if ordered and mount.parent == ordered[-1].id]
        if not on_top:
            break
        ordered += on_top
    return ordered


def covering(mounts, path):
    """Return the uppermost mount that `path` is on."""
    while True:
        here = at(mounts, path)
        if here or path == "/":
            return here[-1] if here else None
        path = os.path.dirname(path)


def is_automount(mount):
    """Return whether this is systemd's automount point and not yet a file system."""
    return mount.kind == "autofs" and mount.source.startswith("systemd-")


def source(kind, dns_name, mount_name, export):
    """Return the first field of an fstab entry."""
    return f"{dns_name}@tcp:/{mount_name}" if kind == "lustre" else f"{dns_name}:{export}"


def split_source(text):
    """Return the servers in a source, and the path or mount name.

    ``a@tcp,b@efa:c@tcp:/name`` is (``{a, b, c}``, ``@/name``), ``host:/export`` is (``{host}``, ``/export``).
    """
    servers, separator, name = text.rpartition(":/")
    if not separator:
        return set(), text
    name = "/" + name.strip("/")
    if "@" not in servers:
        return {servers}, name
    return {server.split("@")[0] for server in re.split("[,:]", servers)}, "@" + name


def same_source(found, wanted, addresses):
    """Return whether `found` is the source `wanted`, whose server has these addresses. mount.lustre shows addresses."""
    servers, name = split_source(found)
    wanted_servers, wanted_name = split_source(wanted)
    return name == wanted_name and bool(servers & {*wanted_servers, *addresses})


def same_type(found, kind):
    """Return whether `found` is a mounted type of this kind of file system, in the kernel or as ``fuse.<type>``."""
    return found.rpartition(".")[2] in MOUNTED_TYPES[kind]


#: Local file systems, whose files and locks are not shared.
LOCAL_TYPES = re.compile(r"bcachefs|btrfs|ext[234]|f2fs|jfs|overlay|ramfs|squashfs|tmpfs|vfat|xfs|zfs")


def unshared(mount):
    """Return why files or locks on a mount may not be shared with other machines; empty if there is no sign of it."""
    if LOCAL_TYPES.fullmatch(mount.kind):
        return f"it lies on {mount.kind} at {mount.path}, which is this node's own"
    local = [option for option in mount.options if option in ("nolock", "localflock")]
    local += [option for option in mount.options if option.startswith("local_lock=") and option != "local_lock=none"]
    if local:
        return f"{mount.path} is mounted with {local[0]}, so that locks hold on this node only"
    if mount.kind == "lustre" and "flock" not in mount.options:
        return f"{mount.path} is mounted without the option flock, so that there are no locks"
    return ""


def lines_of(text):
    """Split into lines at newlines only, as the kernel and mount do."""
    return text.removesuffix("\n").split("\n") if text else []


def entries(fstab, path):
    """Return the fstab entries for exactly this path, ignoring a trailing slash."""
    found = []
    for number, line in enumerate(lines_of(fstab)):
        # Other Unicode blanks are part of a field, as in mount.
        fields = re.split("[ \t]+", line.strip(" \t"))
        if len(fields) < 2 or fields[0].startswith("#"):
            continue
        where = unescape(fields[1])
        if where != "/":
            where = where.rstrip("/")
        if where == path:
            kind, options = (*fields[2:4], "", "")[:2]
            found.append(Entry(number, unescape(fields[0]), where, kind, unescape(options).split(",")))
    return found


def fstab_line(kind, what, path, options, *, at_boot=False, proven=True):
    """Return the fstab entry for a file system."""
    when = AT_BOOT if at_boot else ON_ACCESS
    marks = [MARK] if proven else [MARK, UNPROVEN]
    words = ",".join(dict.fromkeys([*options, *when, *marks]))
    return f"{escape(what)} {escape(path)} {FSTAB_TYPES[kind]} {escape(words)} 0 0"


def is_proven(entry, kind, what, options):
    """Return whether an entry of this role, of either mount time, mounted this file system with these options."""
    given = [option for option in options if option not in _OURS]
    found = [option for option in entry.options if option not in _OURS]
    ours = MARK in entry.options and UNPROVEN not in entry.options
    return ours and (entry.source, entry.kind, found) == (what, FSTAB_TYPES[kind], given)


def with_line(fstab, path, line):
    """Return the fstab with `line`, or none, as the only entry for this path. Other lines are unchanged."""
    numbers = [entry.number for entry in entries(fstab, path)]
    lines = lines_of(fstab)
    if line is None:
        gone = numbers
    elif numbers:
        lines[numbers[0]] = line
        gone = numbers[1:]
    else:
        lines.append(line)
        gone = []
    return "".join(text + "\n" for number, text in enumerate(lines) if number not in gone)


def unit(path, suffix):
    """Return the unit of a mount point, as ``systemd-escape --path --suffix`` names it."""
    words = "/".join(word for word in path.split("/") if word)
    if not words:
        return f"-.{suffix}"
    out = []
    for index, byte in enumerate(words.encode()):
        letter = chr(byte)
        if letter == "/":
            out.append("-")
        elif re.match(r"[A-Za-z0-9:_.]", letter) and not (index == 0 and letter == "."):
            out.append(letter)
        else:
            out.append(f"\\x{byte:02x}")
    return "{}.{}".format("".join(out), suffix)
