# SPDX-License-Identifier: Apache-2.0
"""Read the cluster's users from ``shared_users.txt`` or ``shared_users.yaml``.

The text format has a line ``name,uid[,home]`` for each user. The YAML format has ``users``, ``groups`` with ``users``
in them, or both; ``slurm_account`` and ``shared_filesystem_mount`` apply to the level they are at and those below.
Does not use Ansible. Raises one :class:`~hyperpod_lifecycle.errors.InputError` that lists every problem.
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

from hyperpod_lifecycle import formats, image_accounts
from hyperpod_lifecycle.placeholders import placeholder
from hyperpod_lifecycle.problems import Problems, did_you_mean, json_path, known, nearest, show
from hyperpod_lifecycle.strict_json import Schema, parse, unknown_keys

#: Names of the list in a directory. The first that exists is read, even if it is empty.
FILES = ("shared_users.txt", "shared_users.yaml", "shared_users.yml")

#: Names that useradd accepts, in lower case because Slurm's accounting does not keep upper case.
_NAME = re.compile(r"[a-z_][a-z0-9_.-]{0,31}")
_NAME_RULE = "write a lower-case letter, then up to 31 of those, digits, _, . and -"
#: Names that sacctmgr takes as one word and the database can store.
_ACCOUNT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")
_HOME_RULE = "write an absolute path of a directory of its own, such as /fsx/ada, without .., blanks and colons"


@dataclass(frozen=True)
class User:
    """One user, with the same uid on every node."""

    name: str
    uid: int
    home: str  #: absolute path; "" for the node's default
    slurm_account: str  #: "" if the list has none


@dataclass(frozen=True)
class Users:
    """The users of a list, and notes about it."""

    path: Path | None  #: the file; None if there is none
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


#: Keys of the YAML format, at any level.
KEYS = ("groups", "users", "name", *_User.model_fields)


def files(where: Path) -> list[Path]:
    """Return `where` if it has a file's suffix, else those of :data:`FILES` in it; the first one is read."""
    if where.suffix in (".txt", ".yaml", ".yml"):
        return [where]
    # Path.exists raises if the directory is not readable: /etc/hyperpod-lifecycle is root's.
    return [where / name for name in FILES if os.path.exists(where / name)]  # noqa: PTH110


def load(where: Path) -> Users:
    """Read the list at `where`, a file or a directory that may contain one."""
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
    """Parses one file into users; collects problems and notes."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems = Problems()
        self.users: list[User] = []
        self.notes: list[str] = []
        self._taken: dict[tuple[str, str | int], str] = {}  #: place of the first use of each name, uid and home

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
        """Parse the text format. Allows CRLF, blanks around fields, and comments that begin with ``#``."""
        for number, line in enumerate(text.splitlines(), 1):
            fields = [field.strip() for field in line.partition("#")[0].split(",")]
            if fields == [""]:
                continue
            where = f"line {number}"
            if len(fields) not in (2, 3):
                self._problem(
                    where,
                    f"found {len(fields)} field{'s' if len(fields) > 1 else ''}",
                    "write name,uid or name,uid,home",
                )
                continue
            name, uid, home = (*fields, "")[:3]
            self._add(name, uid, home, "", (where, where, where))

    def document(self, text: str) -> None:
        try:
            # Read every scalar as a string: a name may be `no`, a uid may be quoted.
            raw = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506 # it makes nothing but strings, lists and dicts
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            where = f"line {mark.line + 1} column {mark.column + 1}" if mark else ""
            self._problem(where, str(error.problem), "correct the YAML")
            return
        except yaml.YAMLError as error:
            self._problem("", " ".join(str(error).split()), "correct the YAML")
            return
        except RecursionError:
            self._problem("", "nested too deep", "start it with users: or groups:")
            return
        if raw in (None, ""):
            return
        before = len(self.problems)
        for key, lines in _repeated(yaml.compose(text, Loader=yaml.BaseLoader)):
            found = f"is there {len(lines)} times, in lines {' and '.join(map(str, lines))}"
            self._problem(key, found, "keep one of them; the others would be lost")
        if len(self.problems) > before:
            return
        if not isinstance(raw, dict):
            self._problem("", f"the document is {show(raw)}", "start it with users: or groups:")
            return
        document, _ = parse(_Document, raw, self.file, self.problems)
        if document is None:
            return
        for key in unknown_keys(document):
            name = key.rpartition(".")[2]
            near = did_you_mean(nearest(name, KEYS))
            self._problem(key, f"no key is named {show(name)}", f"{near}Known keys: {known(KEYS)}")
        for at, group, user in _everyone(document):
            account = next(filter(None, (level.slurm_account for level in (user, group, document))), "")
            mount = next(filter(None, (level.shared_filesystem_mount for level in (user, group, document))), "")
            mount_home = posixpath.join(mount, user.username) if mount else ""
            home_key = f"{at}.home" if user.home else f"{at} with shared_filesystem_mount"
            places = (f"{at}.username", f"{at}.uid", home_key)
            self._add(user.username, user.uid, user.home or mount_home, account, places)

    def _add(self, name: str, uid: str, home: str, account: str, where: tuple[str, str, str]) -> None:
        before = len(self.problems)
        for place, value in zip((*where, where[0]), (name, uid, home, account), strict=True):
            if placeholder(value):
                self._problem(place, f"the placeholder {show(value)}", "fill in the real value")
        if not _NAME.fullmatch(name):
            self._problem(where[0], f"the name {show(name)}" if name else "no name", _NAME_RULE)
        elif image_accounts.takes_name(name):
            found = f"the name {show(name)} is that of an account or a group of the image"
            self._problem(where[0], found, "give the user another name")
        if not re.fullmatch("[0-9]{1,10}", uid):
            found = f"the uid {show(uid)}" if uid else f"no uid for {show(name)}"
            self._problem(where[1], found, "write a whole number")
        elif fault := image_accounts.uid_fault(name, int(uid)):
            self._problem(where[1], f"the uid {int(uid)} of {show(name)}{fault}", "give it one such as 2001")
        elif int(uid) < image_accounts.FIRST_FOR_USERS:
            self.notes.append(
                f"{self.file}: {where[1]}: the uid {uid} of {name} is below {image_accounts.FIRST_FOR_USERS}, where "
                "nodes give uids to services as they are installed, so it may be taken"
            )
        if account and not _ACCOUNT.fullmatch(account):
            found = f"the Slurm account {show(account)} of {show(name)}"
            self._problem(f"{where[0]} with slurm_account", found, "write letters, digits, _, . and -")
        home = home.rstrip("/") or home
        if home and (fault := formats.home(home)):
            self._problem(where[2], f"the home {show(home)} {fault}", _HOME_RULE)
        if len(self.problems) > before:
            return
        user = User(name, int(uid), home, account)
        values: list[tuple[str, str | int, str]] = [("name", name, where[0]), ("uid", user.uid, where[1])]
        values += [("home", home, where[2])] if home else []
        for what, taken, at in values:
            first = self._taken.setdefault((what, taken), at)
            if first != at:
                self._problem(at, f"the {what} {taken} again (first at {first})", f"each {what} is one user's")
        self.users.append(user)

    def _problem(self, key: str, found: str, remedy: str) -> None:
        self.problems.add(self.file, key, found, remedy)


def _repeated(document: yaml.Node | None) -> Iterator[tuple[str, list[int]]]:
    """Yield each duplicate key, at any depth, with its lines."""
    waiting: list[tuple[yaml.Node | None, tuple[str | int, ...]]] = [(document, ())]
    seen: set[int] = set()  # aliases can make a cycle
    while waiting:
        node, at = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += [(item, (*at, index)) for index, item in enumerate(node.value)]
        elif isinstance(node, yaml.MappingNode):
            lines: dict[str, list[int]] = {}
            for key, value in node.value:
                lines.setdefault(str(key.value), []).append(key.start_mark.line + 1)
                waiting.append((value, (*at, str(key.value))))
            yield from ((json_path((*at, key)), found) for key, found in lines.items() if len(found) > 1)


def _everyone(document: _Document) -> Iterator[tuple[str, _Group, _User]]:
    for index, user in enumerate(document.users):
        yield f"users[{index}]", document, user
    for number, group in enumerate(document.groups):
        for index, user in enumerate(group.users):
            yield f"groups[{number}].users[{index}]", group, user
