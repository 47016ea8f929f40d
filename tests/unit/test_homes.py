# SPDX-License-Identifier: Apache-2.0
"""Copying homes as far as it needs no root; tests/system has the rest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import homes, mounts

PASSWD = (
    "root:x:0:0:root:/root:/bin/bash\nada:x:2001:2001:Ada,,,:/home/ada/:/bin/bash\nada2:x:2:2::/home/ada2:/bin/sh\n"
)


def test_accounts_are_whole_names() -> None:
    assert homes.account(PASSWD, "ada") == ("ada", 2001, 2001, "/home/ada")
    assert homes.account(PASSWD, "ad") is None


def test_another_home_in_passwd_changes_nothing_else() -> None:
    assert homes.with_home(PASSWD, "ada", "/fsx/ada") == PASSWD.replace("/home/ada/:", "/fsx/ada:")


@pytest.mark.parametrize(
    ("ours", "theirs", "missing"),
    [
        ("# mine\n\nssh-rsa AAAAa me\n", "", ["ssh-rsa AAAAa me"]),
        ("ssh-rsa AAAAa me\n", "restrict ssh-rsa AAAAa another comment\n", []),
        ("ssh-rsa AAAAa\nssh-rsa AAAAab", "ssh-rsa AAAAa", ["ssh-rsa AAAAab"]),
        ("odd line\n", "odd line\r\n", []),
    ],
)
def test_missing_keys(ours: str, theirs: str, missing: list[str]) -> None:
    assert homes.missing_keys(ours, theirs) == missing


MOUNTS = """\
1 0 0:1 / / rw - overlay overlay rw
2 1 0:2 / /fsx rw - autofs systemd-1 rw
3 2 0:3 / /fsx rw - lustre a@tcp:/b rw
4 1 0:4 / /fsx2 rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("path", "number"), [("/fsx", 3), ("/fsx/home", 3), ("/fsx2/x", 4), ("/fsx3", 1), ("/", 1), ("/a/b", 1)]
)
def test_the_mount_that_covers_a_path(path: str, number: int) -> None:
    assert mounts.covering(mounts.parse(MOUNTS), path).id == number


def write(path: Path, text: str = "x", mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    return old, new


def copy(old: Path, new: Path, top: str | None = None) -> homes.Copy:
    made = homes.Copy(str(old), str(new))
    made.run(top)
    return made


def tree(folder: Path) -> dict[str, str | None]:
    return {
        str(path.relative_to(folder)): path.read_text() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def test_copies_all_with_modes_times_and_links_and_again_nothing(folders: tuple[Path, Path]) -> None:
    old, new = folders
    write(old / "bin/run", "#!/bin/sh\n", 0o755)
    os.utime(old / "bin/run", (1, 2))
    write(old / ".ssh/id_rsa", "secret", 0o600)
    (old / ".ssh").chmod(0o700)
    write(old / "locked/file")
    (old / "locked").chmod(0o500)
    (old / "link").symlink_to("/nowhere")
    os.mkfifo(old / "pipe")
    write(old / homes.MARK, "/elsewhere")
    made = copy(old, new)
    assert (made.kept, made.unread) == ([], [])
    before = tree(old)
    assert tree(new) == {path: text for path, text in before.items() if path not in ("pipe", homes.MARK)}
    assert (new / "bin/run").stat().st_mtime == 2
    assert [(new / path).stat().st_mode & 0o777 for path in ("bin/run", ".ssh", ".ssh/id_rsa", "locked")] == [
        *(0o755, 0o700, 0o600, 0o500)
    ]
    assert str((new / "link").readlink()) == "/nowhere"
    again = copy(old, new)
    assert (again.copied, again.kept) == (0, [])


def test_what_is_there_stays_and_is_named(folders: tuple[Path, Path]) -> None:
    old, new = folders
    write(old / "same")
    write(new / "same")
    write(old / "other", "old")
    write(new / "other", "new")
    write(old / "folder/file")
    write(new / "folder")
    (old / "link").symlink_to("a")
    (new / "link").symlink_to("b")
    before = tree(new)
    made = copy(old, new)
    assert made.kept == ["folder", "link", "other"]
    assert tree(new) == before


def test_keys_are_merged_and_pairs_are_not_mixed(folders: tuple[Path, Path]) -> None:
    old, new = folders
    write(old / homes.KEYS, "ssh-rsa AAAAa ours\nssh-rsa AAAAb ours\n")
    write(new / homes.KEYS, "restrict ssh-rsa AAAAb theirs")
    write(old / ".ssh/id_rsa", "ours")
    write(old / ".ssh/id_rsa.pub", "public of ours")
    write(new / ".ssh/id_rsa", "theirs")
    write(old / ".ssh/only.pub", "public")
    made = copy(old, new)
    assert (new / homes.KEYS).read_text() == "restrict ssh-rsa AAAAb theirs\nssh-rsa AAAAa ours\n"
    assert made.kept == [".ssh/id_rsa", ".ssh/id_rsa.pub"]
    assert not (new / ".ssh/id_rsa.pub").exists()
    assert (new / ".ssh/only.pub").exists()
    assert copy(old, new).copied == 0


def test_only_one_folder_if_asked(folders: tuple[Path, Path]) -> None:
    old, new = folders
    assert copy(old, new, ".ssh").copied == 0
    write(old / "big")
    write(old / homes.KEYS, "ssh-rsa AAAAa\n")
    copy(old, new, ".ssh")
    assert set(tree(new)) == {".ssh", homes.KEYS}


@pytest.mark.parametrize("number", homes._NO_LINKS)
def test_without_hard_links(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, "no links here")

    old, new = folders
    write(old / "a/file", mode=0o600)
    monkeypatch.setattr(os, "link", refuse)
    copy(old, new)
    assert tree(new) == tree(old)


@pytest.mark.parametrize("number", homes._NO_LOCKS)
def test_without_locks(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, "no locks here")

    old, new = folders
    write(old / homes.KEYS, "ssh-rsa AAAAa\n")
    monkeypatch.setattr(homes.fcntl, "lockf", refuse)
    copy(old, new)
    assert (new / homes.KEYS).read_text() == "ssh-rsa AAAAa\n"


def test_what_a_killed_run_of_this_node_left_is_removed(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = folders
    monkeypatch.setattr(homes.socket, "gethostname", lambda: "node-1")
    # No process has this number: it is higher than the kernel gives.
    left = [f"node-1-{2**23}", f"node-{2**23}", f"node-1-1-{2**23}", f"node-1-{os.getppid()}"]
    for name in left:
        write(new / f"{homes.STAGING}{name}" / "file")
    copy(old, new)
    assert [(new / f"{homes.STAGING}{name}").exists() for name in left] == [False, True, True, True]


def test_a_file_that_comes_while_we_write_wins(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = folders
    write(old / "file", "ours")
    link = os.link

    def late(source: str, target: str) -> None:
        write(Path(target), "theirs")
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    made = copy(old, new)
    assert made.kept == ["file"]
    assert tree(new) == {"file": "theirs"}
