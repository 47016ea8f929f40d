# SPDX-License-Identifier: Apache-2.0
"""The cluster's users, from ``shared_users.txt`` or ``shared_users.yaml``: the one reader of both formats.

The text format has a line ``name,uid[,home]`` for each user. The YAML format has ``users``, ``groups`` with ``users``
in them, or both; ``slurm_account`` and ``shared_filesystem_mount`` hold for everything below where they stand.
No Ansible here. Raises one :class:`~hyperpod_lifecycle.errors.InputError` that lists every problem.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import Field

from hyperpod_lifecycle.placeholders import placeholder
from hyperpod_lifecycle.problems import Problems, show
from hyperpod_lifecycle.strict_json import Schema, parse, unknown_keys

#: Where a folder is searched for the list. The first that is there wins, even when it is empty.
FILES = ("shared_users.txt", "shared_users.yaml", "shared_users.yml")

#: What useradd accepts, without upper case, which Slurm's accounting does not keep.
_NAME = re.compile(r"[a-z_][a-z0-9_.-]{0,31}")
_NAME_RULE = "write a lower-case letter, then up to 31 of those, digits, _, . and -; root is no user"
#: root, nobody, and what programs take for "no user", in 16 and in 32 bits.
_RESERVED_UIDS = (0, 65534, 65535, 2**32 - 2, 2**32 - 1)
_PATH = re.compile(r"(/(?!\.{1,2}(/|$))[^/:\s]+)+")
#: What belongs to the node's system or to its image; nobody lives there.
_SYSTEM = re.compile(r"/(bin|boot|dev|etc|lib(32|64|x32)?|opt/(ml|slurm)|proc|root|run|sbin|sys|tmp|usr|var)(/.*)?")
_HOME_RULE = "write an absolute path of a directory of its own, such as /fsx/ada, without .., blanks and colons"


@dataclass(frozen=True)
class User:
    """One account that is the same on every node."""

    name: str
    uid: int
    home: str  #: absolute path; "" leaves it to the node
    slurm_account: str  #: "" where the list names none


@dataclass(frozen=True)
class Users:
    """The list as read."""

    path: Path | None  #: the file; None where there is none
    users: tuple[User, ...] = ()
    notes: tuple[str, ...] = ()


class _User(Schema):
    username: str
    uid: str
    home: str | None = None
    slurm_account: str | None = None
    shared_filesystem_mount: str | None = None


class _Group(Schema):
    name: str | None = None
    slurm_account: str | None = None
    shared_filesystem_mount: str | None = None
    users: list[_User] = Field(default_factory=list)


class _Document(_Group):
    groups: list[_Group] = Field(default_factory=list)


def files(where: Path) -> list[Path]:
    """`where` itself if its suffix is that of a file, else those of :data:`FILES` in it, first the one to read."""
    if where.suffix in (".txt", ".yaml", ".yml"):
        return [where]
    # Not Path.exists, which raises where the folder may not be read: /etc/hyperpod-lifecycle is root's.
    return [where / name for name in FILES if os.path.exists(where / name)]  # noqa: PTH110


def load(where: Path) -> Users:
    """Read the list at `where`, a file or a folder that may have one."""
    found = files(where)
    if not found:
        return Users(None)
    path, *others = found
    notes = [f"{other} is not read, because {path.name} is there too" for other in others]
    reading = _ListReader(str(path))
    text = reading.text(path)
    if text is not None:
        (reading.lines if path.suffix == ".txt" else reading.document)(text)
    reading.problems.raise_any()
    return Users(path, tuple(reading.users), (*notes, *reading.notes))


class _ListReader:
    """One file on its way from text to users."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems = Problems()
        self.users: list[User] = []
        self.notes: list[str] = []
        self._taken: dict[tuple[str, str | int], str] = {}  #: where each name, uid and home was first seen

    def text(self, path: Path) -> str | None:
        try:
            return path.read_bytes().decode("utf-8-sig")
        except FileNotFoundError:
            self.problems.add(
                self.file, "", "the file does not exist", "correct shared_users in the inventory's source"
            )
        except OSError as error:
            self.problems.add(self.file, "", f"cannot be read: {error.strerror}", "check the path and run as root")
        except UnicodeDecodeError:
            self.problems.add(self.file, "", "the text is not UTF-8", "save the file as UTF-8")
        return None

    def lines(self, text: str) -> None:
        """Lines may end as on Windows, fields may have blanks around them, ``#`` begins a comment."""
        for number, line in enumerate(text.splitlines(), 1):
            fields = [field.strip() for field in line.partition("#")[0].split(",")]
            if fields == [""]:
                continue
            where = f"line {number}"
            if len(fields) not in (2, 3):
                self._problem(where, f"found {len(fields)} fields", "write name,uid or name,uid,home")
                continue
            name, uid, home = (*fields, "")[:3]
            self._add(name, uid, home, "", (where, where, where))

    def document(self, text: str) -> None:
        try:
            # Every scalar as it is written: a name such as `no`, or a uid in quotes, is what it looks like.
            raw = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506 # it makes nothing but strings, lists and dicts
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            where = f"line {mark.line + 1} column {mark.column + 1}" if mark else ""
            self._problem(where, str(error.problem), "correct the YAML")
            return
        except yaml.YAMLError as error:
            self._problem("", " ".join(str(error).split()), "correct the YAML")
            return
        if raw in (None, ""):
            return
        if not isinstance(raw, dict):
            self._problem("", f"the document is {show(raw)}", "start it with users: or groups:")
            return
        document, _ = parse(_Document, raw, self.file, self.problems)
        if document is None:
            return
        unknown = unknown_keys(document)
        if unknown:
            self.notes.append(f"{self.file}: unknown keys left alone: {', '.join(unknown)}")
        for at, group, user in _everyone(document):
            account = next(filter(None, (level.slurm_account for level in (user, group, document))), "")
            mount = next(filter(None, (level.shared_filesystem_mount for level in (user, group, document))), "")
            mount_home = posixpath.join(mount, user.username) if mount else ""
            home_key = f"{at}.home" if user.home else f"{at} with shared_filesystem_mount"
            places = (f"{at}.username", f"{at}.uid", home_key)
            self._add(user.username, user.uid, user.home or mount_home, account, places)

    def _add(self, name: str, uid: str, home: str, account: str, where: tuple[str, str, str]) -> None:
        before = len(self.problems)
        if not _NAME.fullmatch(name) or name == "root":
            self._problem(where[0], f"the name {show(name)}" if name else "no name", _NAME_RULE)
        if not re.fullmatch("[0-9]{1,10}", uid):
            found = f"the uid {show(uid)}" if uid else f"no uid for {show(name)}"
            self._problem(where[1], found, "write a whole number")
        elif int(uid) in _RESERVED_UIDS or int(uid) >= 2**32:
            self._problem(where[1], f"the uid {int(uid)} of {show(name)}", "give it one of its own, such as 2001")
        home = home.rstrip("/") or home
        if placeholder(home):
            self._problem(where[2], f"the placeholder {show(home)}", "fill in the real value")
        elif home and (fault := _home_fault(home)):
            self._problem(where[2], f"the home {show(home)} {fault}", _HOME_RULE)
        if len(self.problems) > before:
            return
        user = User(name, int(uid), home, account)
        values: list[tuple[str, str | int, str]] = [("name", name, where[0]), ("uid", user.uid, where[1])]
        values += [("home", home, where[2])] if home else []
        for what, value, at in values:
            first = self._taken.setdefault((what, value), at)
            if first != at:
                self._problem(at, f"the {what} {value} again (first at {first})", f"each {what} is one user's")
        self.users.append(user)

    def _problem(self, key: str, found: str, remedy: str) -> None:
        self.problems.add(self.file, key, found, remedy)


def _home_fault(home: str) -> str:
    """Why nobody can live at this path, without a final slash; empty if somebody can."""
    if _SYSTEM.fullmatch(home):
        return "is in a system directory"
    if home.startswith("/") and home.count("/") == 1:
        return "is a top-level directory, such as file systems are mounted at"
    return "" if _PATH.fullmatch(home) else "is not a plain absolute path"


def _everyone(document: _Document) -> Iterator[tuple[str, _Group, _User]]:
    for index, user in enumerate(document.users):
        yield f"users[{index}]", document, user
    for number, group in enumerate(document.groups):
        for index, user in enumerate(group.users):
            yield f"groups[{number}].users[{index}]", group, user
