# SPDX-License-Identifier: Apache-2.0
"""The file server of fake_lustre and fake_nfs: answers the kernel's FUSE requests out of a folder of the host.

Every request is carried out as the user that made it, so permissions are checked here, as by an NFS server; root is
nobody under root squash. Nothing but open files is cached, so nodes see each other's changes as NFS clients do.
fcntl and flock locks hold across nodes. Without xattrs, ACLs, devices' drivers and fallocate.

Started by fake_mount: fake_server.py DESCRIPTOR SERVER'S-FOLDER FOLDER. One process serves one mount; it ends with it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import stat
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fake_fsx import Server

NOBODY = 65534
MAX_WRITE = 1 << 17

HEADER = struct.Struct("<IIQQIIII")
ATTRIBUTES = struct.Struct("<QQQQQQIIIIIIIIII")
INIT_OUT = struct.Struct("<IIIIHHIIHHI28x")
SETATTR = struct.Struct("<IIQQQQQQIIIIIIII")
STATFS = struct.Struct("<QQQQQIIII24x")
LOCK = struct.Struct("<QQQQIIII")
READ_WRITE = struct.Struct("<QQIIQII")

POSIX_LOCKS, ATOMIC_TRUNCATE, BIG_WRITES, FLOCK_LOCKS = 1 << 1, 1 << 3, 1 << 5, 1 << 10
SET_MODE, SET_UID, SET_GID, SET_SIZE, SET_ATIME, SET_MTIME, SET_HANDLE, ATIME_NOW, MTIME_NOW = (
    *(1, 2, 4, 8, 16, 32, 64, 128, 256),
)
LOCK_IS_FLOCK = 1
RELEASE_IS_FLOCK = 2
F_OFD_GETLK, F_OFD_SETLK = 36, 37
FLOCK = struct.Struct("hhqqi4x")
#: Flags of open(2) that are the client kernel's business.
CLIENT_FLAGS = os.O_CREAT | os.O_EXCL | os.O_NOCTTY | os.O_APPEND | os.O_DIRECT | os.O_NOATIME | os.O_NOFOLLOW

SYS_SETGROUPS = {"x86_64": 116, "aarch64": 159}[os.uname().machine]
libc = ctypes.CDLL(None, use_errno=True)


class Later(Exception):
    """The answer is not due yet; the request is tried again."""


@dataclass
class Inode:
    descriptor: int
    key: tuple[int, int]
    lookups: int = 1

    @property
    def path(self) -> str:
        return f"/proc/self/fd/{self.descriptor}"


@dataclass
class Request:
    opcode: int
    unique: int
    node: int
    uid: int
    gid: int
    pid: int
    body: bytes

    def names(self, offset: int = 0) -> list[bytes]:
        return self.body[offset:].split(b"\0")[:-1]


@dataclass
class FileServer:
    connection: int
    server: Server
    folder: Path
    inodes: dict[int, Inode] = field(default_factory=dict)
    numbers: dict[tuple[int, int], int] = field(default_factory=dict)
    folders: dict[int, list[tuple[bytes, int, int]]] = field(default_factory=dict)
    locks: dict[tuple[int, int, int], int] = field(default_factory=dict)  #: (node, owner, is flock) -> descriptor
    waiting: list[Request] = field(default_factory=list)
    last_number: int = 1

    def __post_init__(self) -> None:
        root = os.open(self.folder, os.O_PATH | os.O_DIRECTORY)
        found = os.fstat(root)
        self.inodes[1] = Inode(root, (found.st_dev, found.st_ino))
        self.numbers[self.inodes[1].key] = 1

    # --- the loop ---

    def run(self) -> None:
        poller = select.poll()
        poller.register(self.connection, select.POLLIN)
        while True:
            if poller.poll(20 if self.waiting else None):
                try:
                    data = os.read(self.connection, MAX_WRITE + (1 << 16))
                except OSError as error:
                    if error.errno == errno.ENODEV:
                        return  # unmounted
                    if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                        continue  # a request that was taken back
                    raise
                _, opcode, unique, node, uid, gid, pid, _ = HEADER.unpack_from(data)
                self.handle(Request(opcode, unique, node, uid, gid, pid, data[HEADER.size :]))
            again, self.waiting = self.waiting, []
            for request in again:
                self.handle(request)

    def handle(self, request: Request) -> None:
        if request.opcode in SILENT:
            SILENT[request.opcode](self, request)
            return
        try:
            if self.server.switches.hang and request.opcode != INIT:
                raise Later
            answer = self.carry_out(request)
        except Later:
            self.waiting.append(request)
        except OSError as error:
            self.reply(request, b"", error.errno or errno.EIO)
        else:
            self.reply(request, answer)

    def reply(self, request: Request, data: bytes, error: int = 0) -> None:
        try:
            os.write(self.connection, struct.pack("<IiQ", 16 + len(data), -error, request.unique) + data)
        except OSError as problem:
            if problem.errno != errno.ENOENT:  # the caller is gone
                raise

    def carry_out(self, request: Request) -> bytes:
        operation = OPERATIONS.get(request.opcode)
        if operation is None:
            raise OSError(errno.ENOSYS, "")
        if request.opcode in CHANGES or (request.opcode == OPEN and self.opens_to_write(request)):
            if self.server.switches.read_only:
                raise OSError(errno.EROFS, "")
            if self.server.refuses_changes():
                raise OSError(errno.EIO, "")
        self.become(request)
        try:
            return operation(self, request)
        finally:
            become(0, 0, [])

    def become(self, request: Request) -> None:
        if request.uid == 0:
            if self.server.switches.root_squash:
                become(NOBODY, NOBODY, [])
            return
        become(request.uid, request.gid, groups_of(request.pid))

    @staticmethod
    def opens_to_write(request: Request) -> bool:
        (flags,) = struct.unpack_from("<I", request.body)
        return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC))

    # --- inodes ---

    def entry(self, descriptor: int) -> bytes:
        """The answer that names a file, which the kernel will forget some day."""
        found = os.fstat(descriptor)
        key = (found.st_dev, found.st_ino)
        number = self.numbers.get(key)
        if number is None:
            self.last_number += 1
            number = self.last_number
            self.numbers[key] = number
            self.inodes[number] = Inode(descriptor, key)
        else:
            self.inodes[number].lookups += 1
            os.close(descriptor)
        return struct.pack("<QQQQII", number, 0, 0, 0, 0, 0) + attributes(found)

    def lookup(self, request: Request) -> bytes:
        return self.named(request.node, request.names()[0])

    def named(self, folder: int, name: bytes) -> bytes:
        return self.entry(os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=self.inodes[folder].descriptor))

    def forget(self, request: Request) -> None:
        self.drop(request.node, *struct.unpack_from("<Q", request.body))

    def batch_forget(self, request: Request) -> None:
        (count,) = struct.unpack_from("<I", request.body)
        for index in range(count):
            self.drop(*struct.unpack_from("<QQ", request.body, 8 + 16 * index))

    def drop(self, number: int, lookups: int) -> None:
        inode = self.inodes[number]
        inode.lookups -= lookups
        if inode.lookups <= 0 and number != 1:
            os.close(inode.descriptor)
            del self.inodes[number], self.numbers[inode.key]

    def interrupt(self, request: Request) -> None:
        """A wait for a lock may be given up; a server that hangs cannot be interrupted."""
        (unique,) = struct.unpack_from("<Q", request.body)
        for each in self.waiting:
            if each.unique == unique and each.opcode == SETLKW and not self.server.switches.hang:
                self.waiting.remove(each)
                self.reply(each, b"", errno.EINTR)
                return

    def getattr(self, request: Request) -> bytes:
        return self.attributes(request.node)

    def attributes(self, node: int) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + attributes(os.fstat(self.inodes[node].descriptor))

    def setattr(self, request: Request) -> bytes:
        valid, _, handle, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, _, uid, gid, _ = SETATTR.unpack_from(
            request.body
        )
        inode = self.inodes[request.node]
        now = os.fstat(inode.descriptor)
        link = stat.S_ISLNK(now.st_mode)
        if valid & (SET_UID | SET_GID):
            owner = (uid if valid & SET_UID else -1, gid if valid & SET_GID else -1)
            if libc.fchownat(inode.descriptor, b"", *map(ctypes.c_uint, owner), 0x1000) != 0:  # AT_EMPTY_PATH
                raise OSError(ctypes.get_errno(), "")
        if valid & SET_MODE and not link:
            Path(inode.path).chmod(mode & 0o7777)
        if valid & SET_SIZE:
            if valid & SET_HANDLE:
                os.ftruncate(handle, size)
            else:
                os.truncate(inode.path, size)
        if valid & (SET_ATIME | SET_MTIME) and not link:
            if valid & ATIME_NOW and valid & MTIME_NOW:
                os.utime(inode.path)
            else:
                clock = time.time_ns()
                times = [now.st_atime_ns, now.st_mtime_ns]
                if valid & SET_ATIME:
                    times[0] = clock if valid & ATIME_NOW else atime * 10**9 + atime_ns
                if valid & SET_MTIME:
                    times[1] = clock if valid & MTIME_NOW else mtime * 10**9 + mtime_ns
                os.utime(inode.path, ns=(times[0], times[1]))
        return self.attributes(request.node)

    def access(self, request: Request) -> bytes:
        (mask,) = struct.unpack_from("<I", request.body)
        if not os.access(self.inodes[request.node].path, mask & 7, effective_ids=True):
            raise OSError(errno.EACCES, "")
        return b""

    # --- names ---

    def readlink(self, request: Request) -> bytes:
        return os.readlink(b"", dir_fd=self.inodes[request.node].descriptor)

    def symlink(self, request: Request) -> bytes:
        name, target = request.names()
        os.symlink(target, name, dir_fd=self.inodes[request.node].descriptor)
        return self.named(request.node, name)

    def mknod(self, request: Request) -> bytes:
        mode, device = struct.unpack_from("<II", request.body)
        (name,) = request.names(16)
        os.mknod(name, mode, device, dir_fd=self.inodes[request.node].descriptor)
        return self.named(request.node, name)

    def mkdir(self, request: Request) -> bytes:
        (mode,) = struct.unpack_from("<I", request.body)
        (name,) = request.names(8)
        os.mkdir(name, mode, dir_fd=self.inodes[request.node].descriptor)
        return self.named(request.node, name)

    def unlink(self, request: Request) -> bytes:
        os.unlink(request.names()[0], dir_fd=self.inodes[request.node].descriptor)
        return b""

    def rmdir(self, request: Request) -> bytes:
        os.rmdir(request.names()[0], dir_fd=self.inodes[request.node].descriptor)
        return b""

    def rename(self, request: Request) -> bytes:
        (folder,) = struct.unpack_from("<Q", request.body)
        return self.move(request.node, folder, 0, *request.names(8))

    def rename2(self, request: Request) -> bytes:
        folder, flags = struct.unpack_from("<QI", request.body)
        return self.move(request.node, folder, flags, *request.names(16))

    def move(self, folder: int, to_folder: int, flags: int, old: bytes, new: bytes) -> bytes:
        here, there = self.inodes[folder].descriptor, self.inodes[to_folder].descriptor
        if libc.renameat2(here, old, there, new, ctypes.c_uint(flags)) != 0:
            raise OSError(ctypes.get_errno(), "")
        return b""

    def link(self, request: Request) -> bytes:
        (old,) = struct.unpack_from("<Q", request.body)
        (name,) = request.names(8)
        os.link(self.inodes[old].path, name, dst_dir_fd=self.inodes[request.node].descriptor, follow_symlinks=True)
        return self.named(request.node, name)

    # --- files ---

    def open(self, request: Request) -> bytes:
        (flags,) = struct.unpack_from("<I", request.body)
        handle = os.open(self.inodes[request.node].path, flags & ~CLIENT_FLAGS)
        return struct.pack("<QII", handle, 0, 0)

    def create(self, request: Request) -> bytes:
        flags, mode = struct.unpack_from("<II", request.body)
        (name,) = request.names(16)
        flags = flags & ~CLIENT_FLAGS | flags & os.O_EXCL | os.O_CREAT | os.O_NOFOLLOW
        handle = os.open(name, flags, mode, dir_fd=self.inodes[request.node].descriptor)
        try:
            entry = self.named(request.node, name)
        except OSError:
            os.close(handle)
            raise
        return entry + struct.pack("<QII", handle, 0, 0)

    def read(self, request: Request) -> bytes:
        handle, offset, size, *_ = READ_WRITE.unpack_from(request.body)
        return os.pread(handle, size, offset)

    def write(self, request: Request) -> bytes:
        handle, offset, size, *_ = READ_WRITE.unpack_from(request.body)
        data = request.body[READ_WRITE.size : READ_WRITE.size + size]
        return struct.pack("<II", os.pwrite(handle, data, offset), 0)

    def fsync(self, request: Request) -> bytes:
        (handle,) = struct.unpack_from("<Q", request.body)
        os.fsync(handle)
        return b""

    def flush(self, request: Request) -> bytes:
        """A close by one process: its fcntl locks end."""
        (owner,) = struct.unpack_from("<Q", request.body, 16)
        self.unlock((request.node, owner, 0))
        return b""

    def release(self, request: Request) -> bytes:
        handle, _, flags, owner = struct.unpack_from("<QIIQ", request.body)
        if flags & RELEASE_IS_FLOCK:
            self.unlock((request.node, owner, 1))
        os.close(handle)
        return b""

    # --- folders ---

    def opendir(self, request: Request) -> bytes:
        handle = os.open(self.inodes[request.node].path, os.O_RDONLY | os.O_DIRECTORY)
        return struct.pack("<QII", handle, 0, 0)

    def readdir(self, request: Request) -> bytes:
        handle, offset, size, *_ = READ_WRITE.unpack_from(request.body)
        if offset == 0 or handle not in self.folders:
            self.folders[handle] = self.listing(request.node, handle)
        found = bytearray()
        for index, (name, inode, kind) in enumerate(self.folders[handle][offset:], offset + 1):
            row = struct.pack("<QQII", inode, index, len(name), kind) + name
            row += bytes(-len(row) % 8)
            if len(found) + len(row) > size:
                break
            found += row
        return bytes(found)

    def listing(self, node: int, handle: int) -> list[tuple[bytes, int, int]]:
        own = self.inodes[node].key[1]
        rows = [(b".", own, stat.S_IFDIR >> 12), (b"..", own, stat.S_IFDIR >> 12)]
        with os.scandir(handle) as entries:
            for each in entries:
                kind = stat.S_IFLNK if each.is_symlink() else stat.S_IFDIR if each.is_dir() else 0
                rows.append((os.fsencode(each.name), each.inode(), kind >> 12))
        return rows

    def releasedir(self, request: Request) -> bytes:
        (handle,) = struct.unpack_from("<Q", request.body)
        self.folders.pop(handle, None)
        os.close(handle)
        return b""

    # --- locks ---

    def getlk(self, request: Request) -> bytes:
        _, owner, start, end, kind, _, _, _ = LOCK.unpack_from(request.body)
        wanted = flock(kind, start, end)
        descriptor = self.lock_descriptor((request.node, owner, 0))
        kind, _, start, length, _ = FLOCK.unpack(fcntl.fcntl(descriptor, F_OFD_GETLK, wanted))
        end = start + length - 1 if length else (1 << 63) - 1
        return struct.pack("<QQII", start, end, kind, 0)

    def setlk(self, request: Request) -> bytes:
        _, owner, start, end, kind, _, flags, _ = LOCK.unpack_from(request.body)
        key = (request.node, owner, flags & LOCK_IS_FLOCK)
        if kind == fcntl.F_UNLCK and key not in self.locks:
            return b""
        descriptor = self.lock_descriptor(key)
        if flags & LOCK_IS_FLOCK:
            operation = {fcntl.F_RDLCK: fcntl.LOCK_SH, fcntl.F_WRLCK: fcntl.LOCK_EX, fcntl.F_UNLCK: fcntl.LOCK_UN}
            fcntl.flock(descriptor, operation[kind] | fcntl.LOCK_NB)
        else:
            fcntl.fcntl(descriptor, F_OFD_SETLK, flock(kind, start, end))
        return b""

    def setlkw(self, request: Request) -> bytes:
        try:
            return self.setlk(request)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise Later from error
            raise

    def lock_descriptor(self, key: tuple[int, int, int]) -> int:
        """A file opened for one owner of locks: the kernel keeps these apart between nodes too."""
        if key not in self.locks:
            become(0, 0, [])  # the client has opened it, so it may lock it
            self.locks[key] = os.open(self.inodes[key[0]].path, os.O_RDWR)
        return self.locks[key]

    def unlock(self, key: tuple[int, int, int]) -> None:
        descriptor = self.locks.pop(key, None)
        if descriptor is not None:
            os.close(descriptor)

    # --- the file system ---

    def init(self, request: Request) -> bytes:
        _, _, readahead, offered = struct.unpack_from("<IIII", request.body)
        wanted = offered & (POSIX_LOCKS | ATOMIC_TRUNCATE | BIG_WRITES | FLOCK_LOCKS)
        return INIT_OUT.pack(7, 31, readahead, wanted, 16, 12, MAX_WRITE, 1, 0, 0, 0)

    def statfs(self, request: Request) -> bytes:
        found = os.fstatvfs(self.inodes[1].descriptor)
        sizes = (found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree)
        return STATFS.pack(*sizes, found.f_bsize, found.f_namemax, found.f_frsize, 0)

    def nothing(self, request: Request) -> bytes:
        return b""


def attributes(found: os.stat_result) -> bytes:
    times = (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)
    return ATTRIBUTES.pack(
        found.st_ino,
        found.st_size,
        found.st_blocks,
        *(each // 10**9 for each in times),
        *(each % 10**9 for each in times),
        found.st_mode,
        found.st_nlink,
        found.st_uid,
        found.st_gid,
        found.st_rdev,
        found.st_blksize,
        0,
    )


def flock(kind: int, start: int, end: int) -> bytes:
    """struct flock; an end at the last possible byte is the end of the file, wherever that is."""
    length = 0 if end >= (1 << 63) - 1 else end - start + 1
    return FLOCK.pack(kind, os.SEEK_SET, start, length, 0)


def groups_of(pid: int) -> list[int]:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("Groups:"):
                return [int(word) for word in line.split()[1:]]
    except OSError:
        pass  # the process is gone; nobody will use the answer
    return []


def become(uid: int, gid: int, groups: list[int]) -> None:
    """For this one thread's next file operations; capabilities over files go and come back with uid 0."""
    libc.setfsuid(0)
    libc.syscall(SYS_SETGROUPS, len(groups), (ctypes.c_uint * len(groups))(*groups))
    libc.setfsgid(gid)
    libc.setfsuid(uid)


INIT, OPEN, SETLKW = 26, 14, 33
Operation = Callable[[FileServer, Request], bytes]
OPERATIONS: dict[int, Operation] = {
    1: FileServer.lookup,
    3: FileServer.getattr,
    4: FileServer.setattr,
    5: FileServer.readlink,
    6: FileServer.symlink,
    8: FileServer.mknod,
    9: FileServer.mkdir,
    10: FileServer.unlink,
    11: FileServer.rmdir,
    12: FileServer.rename,
    13: FileServer.link,
    OPEN: FileServer.open,
    15: FileServer.read,
    16: FileServer.write,
    17: FileServer.statfs,
    18: FileServer.release,
    20: FileServer.fsync,
    25: FileServer.flush,
    INIT: FileServer.init,
    27: FileServer.opendir,
    28: FileServer.readdir,
    29: FileServer.releasedir,
    30: FileServer.fsync,
    31: FileServer.getlk,
    32: FileServer.setlk,
    SETLKW: FileServer.setlkw,
    34: FileServer.access,
    35: FileServer.create,
    38: FileServer.nothing,  # destroy
    45: FileServer.rename2,
}
#: Requests that change something: refused by a server that is read-only or not ready.
CHANGES = {4, 6, 8, 9, 10, 11, 12, 13, 16, 35, 45}
SILENT: dict[int, Callable[[FileServer, Request], None]] = {
    2: FileServer.forget,
    36: FileServer.interrupt,
    42: FileServer.batch_forget,
}


def main() -> None:
    connection, server, folder = sys.argv[1:]
    os.umask(0)  # the client's has been applied already
    FileServer(int(connection), Server(Path(server)), Path(folder)).run()


if __name__ == "__main__":
    main()
