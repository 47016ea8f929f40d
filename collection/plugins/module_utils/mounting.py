# SPDX-License-Identifier: Apache-2.0
"""Mount a shared file system through systemd, verify it, keep its entry in fstab. Uses the standard library only."""

from __future__ import annotations

import errno
import os
import pwd
import re
import socket
import time
from pathlib import Path

from ansible_collections.hyperpod.lifecycle.plugins.module_utils import commands, mount_faults, mounts
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.files import replace
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.leftovers import own_name, sweep
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.limited import limited
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.waits import pause

FSTAB = Path("/etc/fstab")
AUTOFS = Path("/dev/autofs")
FILE_SYSTEM_TYPES = Path("/proc/filesystems")
BOOT = Path("/boot")
FIRST_DELAY = 0.5
LONGEST_DELAY = 5
COMMAND_SECONDS = 60
AGAIN = "then run again: hyperpod-lifecycle apply --tags fsx"


def run(*command, seconds=COMMAND_SECONDS):
    """Return exit status and output of a program; status 127 if it is missing, 124 after a timeout."""
    status, out, err = commands.run(command, seconds)
    return status, " ".join(f"{out} {err}".split())


def has_autofs():
    """Return whether the kernel has autofs. Opening the device loads the module if needed."""
    try:
        os.close(os.open(AUTOFS, os.O_RDONLY))
    except OSError:
        return False
    return "autofs" in FILE_SYSTEM_TYPES.read_text(encoding="utf-8").split()


def resolve(name):
    """Return all addresses of a name."""
    try:
        return sorted({found[4][0] for found in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)})
    except socket.gaierror as error:
        raise OSError(errno.ENOENT, error.strerror) from error


def open_folder(path):
    """Open a path, which, unlike stat, triggers automount."""
    os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY))


def write_probe(path, user=None):
    """Write a file to disk and delete it, as root or another user. Also delete those of killed runs."""
    if user:
        os.setgroups([])
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
    kind = f"probe-mount-{os.getuid()}"
    sweep(path, kind)
    file = os.path.join(path, f".{own_name(kind)}")
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        os.write(handle, b"hyperpod-lifecycle was here; this file can be deleted\n")
        os.fsync(handle)
    finally:
        os.close(handle)
        os.unlink(file)


def make_folder(path):
    """Create a missing mount point and its parents."""
    if os.path.realpath(path) != path:
        raise OSError(errno.EINVAL, f"it leads to {os.path.realpath(path)} through a symbolic link; name that path")
    os.umask(0o022)
    os.makedirs(path, exist_ok=True)


def words(error):
    """Return the message of an exception without its number."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


class Share:
    """A file system and its mount point on this node."""

    def __init__(self, module):
        wanted = module.params
        self.module = module
        self.path = wanted["path"].rstrip("/")
        self.kind = wanted["kind"]
        self.dns_name = wanted["dns_name"]
        self.source = mounts.source(self.kind, self.dns_name, wanted["mount_name"], wanted["export"])
        self.limit = wanted["attempt_seconds"]
        self.automount = mounts.unit(self.path, "automount")
        self.mount_unit = mounts.unit(self.path, "mount")
        self.on_access = has_autofs()
        self.addresses = []
        self.notes = []

    # State.

    def here(self):
        """Return the uppermost mount at the path, or None."""
        mountinfo = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        return (mounts.at(mounts.parse(mountinfo), self.path) or [None])[-1]

    def mounted(self):
        """Return the mount of this file system, None if nothing is mounted. Raises Fault if another one is."""
        mount = self.here()
        if mount is None or mounts.is_automount(mount):
            return None
        same_type = mounts.same_type(mount.kind, self.kind)
        if not same_type or not mounts.same_source(mount.source, self.source, self.addresses):
            if (
                same_type
                and not self.addresses
                and mounts.split_source(mount.source)[1] == mounts.split_source(self.source)[1]
            ):
                self.resolve()
                return self.mounted()
            raise Fault(
                f"{self.path} should be {self.source} ({self.kind}), but {mount.source} ({mount.kind}) is mounted "
                f"there; correct the setting, or end what uses it and unmount it, {AGAIN}"
            )
        if mount.root != "/":
            raise Fault(
                f"{self.path} should be the whole of {self.source}, but only its part {mount.root} is mounted there; "
                f"unmount it, {AGAIN}"
            )
        return mount

    def is_foreign(self):
        """Return whether another file system is mounted."""
        try:
            self.mounted()
        except Fault:
            return True
        return False

    def awake(self):
        """Return the result of `mounted` after an access that triggers automount."""
        mount = self.here()
        if mount is not None and mounts.is_automount(mount) and not self.module.check_mode:
            try:
                limited(lambda: open_folder(self.path), self.limit)
            except OSError:
                return None  # the mount that follows reports the error
        return self.mounted()

    # Changes.

    def resolve(self):
        """Wait for the server's name to resolve."""
        seconds = self.module.params["resolve_seconds"]
        deadline = time.monotonic() + seconds
        while True:
            try:
                self.addresses = limited(lambda: resolve(self.dns_name), min(self.limit, max(1, seconds)))
                return
            except ChildProcessError as error:
                raise Fault(
                    f"{self.path}: {self.dns_name!r} is not a DNS name ({error}); correct it, {AGAIN}"
                ) from error
            except OSError as error:
                said = words(error)
            if time.monotonic() >= deadline:
                raise Fault(
                    f"{self.path}: the name {self.dns_name} of {self.source} had no address within {seconds} s: "
                    f"{said}; check the name in the cluster's files and the VPC's DNS settings, {AGAIN}"
                )
            pause(0.5)

    def configure(self):
        """Write the fstab entry. Return whether it changed, and the file before and after."""
        before = FSTAB.read_text(encoding="utf-8") if FSTAB.exists() else ""
        lines = mounts.entries(before, self.path)
        mark = any(mounts.MARK in line.options for line in lines)
        mount = self.awake()
        if mount and not mark:
            return False, before, before  # an entry of the agent or an administrator
        foreign = [line for line in lines if mounts.MARK not in line.options and line.source != self.source]
        if foreign:
            raise Fault(
                f"{self.path} should be {self.source} ({self.kind}), but /etc/fstab has {foreign[0].source} for it; "
                f"delete that line or correct the setting, {AGAIN}"
            )
        proven = any(self.is_proven(line) for line in lines)
        if not proven and lines and self.fstab_line(proven=False) == mounts.lines_of(before)[lines[0].number]:
            return False, before, before
        changed, after = self.write_fstab(before, self.fstab_line(proven=proven))
        if self.module.check_mode:
            return changed, before, after
        if changed and mount:
            self.notes.append(f"{self.path}: new options act when it is mounted next")
        if changed and not self.on_access:
            self.notes.append("this kernel has no autofs: file systems are mounted at boot, not on first access")
        self.reload(changed)
        return changed, before, after

    def fstab_line(self, proven):
        """Return the fstab entry."""
        options = self.module.params["options"]
        return mounts.fstab_line(self.kind, self.source, self.path, options, at_boot=not self.on_access, proven=proven)

    def is_proven(self, line):
        """Return whether this entry, with either mount time, was ever mounted."""
        return mounts.is_proven(line, self.kind, self.source, self.module.params["options"])

    def write_fstab(self, before, line):
        """Make `line`, or none, the only entry for the path. Return whether fstab changed, and its new text."""
        after = mounts.with_line(before, self.path, line)
        return replace(self.module, FSTAB, before, after, 0o644), after

    def settle(self, *, works):
        """Mark an unverified entry as verified if it works, else unmount it and remove it from fstab."""
        before = FSTAB.read_text(encoding="utf-8") if FSTAB.exists() else ""
        if not any(mounts.UNPROVEN in line.options for line in mounts.entries(before, self.path)):
            return
        if not works and not self.is_foreign():
            run("systemctl", "stop", self.automount, self.mount_unit)
            if self.here() is not None:
                return  # in use
        self.write_fstab(before, self.fstab_line(proven=True) if works else None)
        self.reload(changed=True)

    def make_folder(self):
        """Create the mount point if it is missing."""
        if self.here() is not None:
            return  # created by automount
        try:
            limited(lambda: make_folder(self.path), self.limit)
        except OSError as error:
            said = f"no directory to mount {self.source} on: {words(error)}; correct that, {AGAIN}"
            raise Fault(f"{self.path}: {said}") from error

    def reload(self, changed=False):
        """Reload systemd if fstab has changed."""
        _status, said = run("systemctl", "show", self.mount_unit, "--property=LoadState,NeedDaemonReload")
        if not changed and "LoadState=loaded" in said and "NeedDaemonReload=no" in said:
            return
        status, said = run("systemctl", "daemon-reload")
        if status:
            raise Fault(f"{self.path}: systemd does not read /etc/fstab: {said}; correct that, {AGAIN}")

    def client(self):
        """Check the mount helper, and load Lustre's modules."""
        helper = {"lustre": "mount.lustre", "openzfs": "mount.nfs"}[self.kind]
        package = {"lustre": "lustre-client-utils-aws", "openzfs": "nfs-common"}[self.kind]
        if not any(os.path.exists(os.path.join(folder, helper)) for folder in ("/sbin", "/usr/sbin")):
            raise Fault(
                f"{self.path}: {self.source} needs the program {helper}, which this image lacks; install the package "
                f"{package}, {AGAIN}"
            )
        if self.kind != "lustre":
            return
        kernel = os.uname().release
        for command in (["modprobe", "lnet"], ["modprobe", "lustre"], ["lctl", "network", "up"]):
            status, said = run(*command)
            if status and command[0] == "lctl":
                raise Fault(f"{self.path}: no Lustre network for {self.source}: {said}; look into dmesg, {AGAIN}")
            if status:
                raise Fault(
                    f"{self.path}: {self.source} needs the module {command[1]} for kernel {kernel}: {said}; "
                    f"install lustre-client-modules-{kernel} or start a kernel that has it, {AGAIN}"
                )

    def next_kernel(self):
        """Check that the kernel of the next boot has a Lustre module."""
        kernels = [path.name.partition("-")[2] for path in BOOT.glob("vmlinuz-*")]
        newest = max(kernels, key=version_key, default="")
        if self.kind != "lustre" or newest in ("", os.uname().release):
            return
        status, _said = run("modinfo", "-k", newest, "lustre")
        if status:
            self.notes.append(
                f"{self.path}: kernel {newest} is installed and has no Lustre module; after the next boot "
                f"{self.path} is not mounted unless lustre-client-modules-{newest} is installed first"
            )

    def mount(self):
        """Mount and verify. Return whether it was not mounted before."""
        before = self.awake()
        try:
            if not before:
                if not self.addresses:
                    self.resolve()
                self.client()
                self.make_folder()
                self.reload()
            self.until_proven(start=not before)
        except Fault:
            if not before:
                self.settle(works=False)
            raise
        self.settle(works=True)
        return not before

    def until_proven(self, start):
        """Try with increasing random pauses, so that nodes do not access the server at the same time."""
        if not start and self.here() is None:
            raise Fault(f"{self.path}: {self.source} is not mounted; mount it: hyperpod-lifecycle apply --tags fsx")
        seconds = self.module.params["wait_seconds"]
        deadline = time.monotonic() + seconds
        delay = FIRST_DELAY
        attempts = 0
        while True:
            attempts += 1
            said = self.attempt(start)
            if not said:
                return
            advice = mount_faults.advice(said, self.kind, self.mount_unit)
            left = deadline - time.monotonic()
            if advice.final or left <= 0:
                tries = "1 attempt" if attempts == 1 else f"{attempts} attempts"
                how_long = "" if advice.final else f" after {seconds} s and {tries}"
                raise Fault(f"{self.path}: {self.source} cannot be used{how_long}: {said}; {advice.remedy}, {AGAIN}")
            pause(min(delay, left))
            delay = min(2 * delay, LONGEST_DELAY)

    def attempt(self, start):
        """Return the error of a check; empty if it succeeds."""
        if not self.mounted():
            said = self.try_to_mount(start)
            if said or not self.mounted():
                return f"mounting: {said or 'systemd has mounted nothing there'}"
        return self.probe()

    def try_to_mount(self, start):
        """Mount once through systemd. Return the error, from mount's own output if there is any."""
        began = int(time.time())
        if start:
            # systemd refuses to start a unit that failed too often.
            run("systemctl", "reset-failed", self.mount_unit, self.automount)
            unit = self.automount if self.on_access else self.mount_unit
            status, said = run("systemctl", "start", unit, seconds=self.limit)
            if status:
                return self.mount_words(began) or f"systemd does not start {unit}: {said}"
        try:
            limited(lambda: open_folder(self.path), self.limit)
        except TimeoutError as error:
            return words(error)
        except OSError as error:
            # systemd's automount returns ENODEV, whatever the cause.
            return self.mount_words(began) or f"systemd has not mounted it ({errno.errorcode.get(error.errno)})"
        return ""

    def probe(self):
        """Return the error of writing; empty if it succeeds."""
        try:
            limited(lambda: write_probe(self.path), self.limit)
            return ""
        except PermissionError as error:
            refused = words(error)
        except OSError as error:
            return f"writing to it: {words(error)}"
        name = self.module.params["probe_user"]
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            return f"writing to it as root: {refused} (and there is no user {name} to try)"
        said = ""
        for folder in (self.path, os.path.join(self.path, name)):
            try:
                limited(lambda folder=folder: write_probe(folder, user), self.limit)
                return ""
            except OSError as error:
                said = said or words(error)
        return (
            f"writing to it as root: {refused}, and as {name}: {said} (if the server treats root as nobody, the file "
            f"system's root must be writable for users, or root be let in with no_root_squash)"
        )

    def mount_words(self, began):
        """Return the output of mount since a time, from the unit's journal."""
        matches = [f"_SYSTEMD_UNIT={self.mount_unit}", "SYSLOG_IDENTIFIER=mount", f"--since=@{began}"]
        command = ["journalctl", *matches, "--output=cat", "--quiet", "--no-pager"]
        status, out, _err = commands.run(command, COMMAND_SECONDS)
        return " ".join(dict.fromkeys(out.split("\n"))).strip() if status == 0 else ""


def version_key(text):
    """Return a sort key for kernel releases."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.findall(r"\d+|[a-z]+", text)]
