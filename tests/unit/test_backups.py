# SPDX-License-Identifier: Apache-2.0
"""Backups as folders: what is written, what is chosen, what is refused."""

from __future__ import annotations

import os
import socket
import subprocess
import tarfile
from pathlib import Path

import pytest
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import backups, dump, leftovers, s3
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.slurm import controllers_up
from ansible_collections.hyperpod.lifecycle.plugins.modules import slurm_restore

ARN = "arn:aws:sagemaker:us-west-2:111122223333:cluster/abc"
ABOUT = {"cluster": "ml", "arn": ARN, "slurm": "slurm 24.11.5", "created": "20261130T120000Z", "clusters": ["ml"]}
DUMP = b"CREATE TABLE a;\n-- Dump completed on 2026-11-30\n"

#: In the place of the AWS CLI: S3 is a folder, and `cp` knows the options that we use.
FAKE_AWS = """\
#!/usr/bin/env python3
import fnmatch, os, shutil, sys
from pathlib import Path

assert sys.argv[1:4] == ["s3", "cp", "--only-show-errors"], sys.argv
*options, source, dest = (word.replace("s3://", os.environ["FAKE_S3"] + "/") for word in sys.argv[4:])
if options[:1] != ["--recursive"]:
    Path(dest).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, dest)
    sys.exit()
pattern = options[-1] if "--include" in options else "*"
for path in Path(source).rglob("*"):
    if path.is_file() and fnmatch.fnmatch(str(path.relative_to(source)), pattern):
        (Path(dest) / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, Path(dest) / path.relative_to(source))
"""


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin/aws"
    program.parent.mkdir()
    program.write_text(FAKE_AWS)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_S3", str(tmp_path / "s3"))
    return tmp_path / "s3/bucket"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "slurmctld"
    (folder / "hash.1/job.11").mkdir(parents=True)
    (folder / "clustername").write_text("ml|7")
    (folder / "hash.1/job.11/script").write_text("#!/bin/sh\n")
    (folder / "hash.1/job.11/script").chmod(0o700)
    return folder


def make(folder: Path, state: Path, dump: bytes = DUMP, **about: str) -> Path:
    folder.mkdir(parents=True)
    (folder / backups.DATABASE).write_bytes(dump)
    backups.pack(str(state), str(folder / backups.STATE))
    backups.seal(str(folder), {**ABOUT, **about})
    return folder


def test_the_state_comes_back_with_modes_and_times(tmp_path: Path, state: Path) -> None:
    folder = make(tmp_path / "backup", state)
    assert backups.read(str(folder))["cluster"] == "ml"
    new = tmp_path / "new"
    new.mkdir()
    backups.unpack(str(folder / backups.STATE), str(new))
    script = new / "hash.1/job.11/script"
    assert script.stat().st_mode & 0o7777 == 0o700
    assert (new / "clustername").read_text() == "ml|7"
    assert script.stat().st_uid == os.geteuid()
    assert int(script.stat().st_mtime) == int((state / "hash.1/job.11/script").stat().st_mtime)


def test_a_state_that_is_a_link_is_backed_up_and_restored_where_it_leads(tmp_path: Path, state: Path) -> None:
    """As several controllers have it."""
    link = tmp_path / "link"
    link.symlink_to(state)
    folder = make(tmp_path / "backup", link)
    (state / "clustername").write_text("ml|9")
    backups.replace(str(folder / backups.STATE), str(link))
    assert link.is_symlink()
    assert (state / "clustername").read_text() == "ml|7"


def test_a_restored_state_is_all_that_the_folder_holds_and_the_folder_stays(tmp_path: Path, state: Path) -> None:
    folder = make(tmp_path / "backup", state)
    (state / "later/job.12").mkdir(parents=True)
    (state / "clustername").write_text("ml|9")
    inode = state.stat().st_ino
    backups.replace(str(folder / backups.STATE), str(state))
    assert sorted(path.name for path in state.iterdir()) == ["clustername", "hash.1"]
    assert (state / "clustername").read_text() == "ml|7"
    assert state.stat().st_ino == inode


@pytest.mark.parametrize("name", [backups.DATABASE, backups.STATE])
@pytest.mark.parametrize("damage", ["cut", "flip", "gone"])
def test_a_damaged_backup_is_refused(tmp_path: Path, state: Path, name: str, damage: str) -> None:
    folder = make(tmp_path / "backup", state)
    path = folder / name
    content = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(content[:-4])
    elif damage == "flip":
        content[len(content) // 2] ^= 0xFF
        path.write_bytes(content)
    else:
        path.unlink()
    with pytest.raises(Fault, match=name):
        backups.read(str(folder))


def test_a_dump_that_was_cut_off_becomes_no_backup(tmp_path: Path, state: Path) -> None:
    with pytest.raises(Fault, match="whole database"):
        make(tmp_path / "backup", state, dump=b"CREATE TABLE a;\n")
    assert not (tmp_path / "backup" / backups.MANIFEST).exists()


def test_an_archive_with_paths_elsewhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("../outside"))
    (tmp_path / "new").mkdir()
    with pytest.raises(Fault, match="no part of a backup"):
        backups.unpack(str(path), str(tmp_path / "new"))
    assert not (tmp_path / "outside").exists()


def test_the_last_backup_of_this_very_cluster_is_chosen(tmp_path: Path, state: Path) -> None:
    place = tmp_path / "place"
    for when in ("20261101T000000Z", "20261102T000000Z"):
        make(place / "ml-abc" / when, state)
    other = make(place / "ml-xyz/20261103T000000Z", state)
    (place / "ml-abc/20261104T000000Z.part").mkdir()
    (place / "ml-abc/20261105T000000Z").mkdir()
    assert backups.choose(str(place), "ml", ARN) == str(place / "ml-abc/20261102T000000Z")
    assert backups.choose(str(other), "ml", ARN) == str(other), "one that is named is taken"
    with pytest.raises(Fault, match=r"no backup of this cluster \(ml-new\).*ml-xyz/20261103T000000Z"):
        backups.choose(str(place), "ml", "arn:aws:sagemaker:us-west-2:111122223333:cluster/new")
    with pytest.raises(Fault, match="holds no backup"):
        backups.choose(str(tmp_path / "nowhere"), "ml", ARN)


def test_a_backup_goes_to_s3_and_comes_back(tmp_path: Path, state: Path, bucket: Path) -> None:
    for when in ("20261101T000000Z", "20261102T000000Z"):
        s3.upload(str(make(tmp_path / when, state, created=when)), f"s3://bucket/backups/ml-abc/{when}")
    for number, place in enumerate(("s3://bucket/backups", "s3://bucket/backups/ml-abc/20261102T000000Z")):
        url, folder = s3.choose(place, "ml", ARN, str(tmp_path / f"found-{number}"))
        assert url == "s3://bucket/backups/ml-abc/20261102T000000Z"
        assert backups.read(folder)["created"] == "20261102T000000Z"
    with pytest.raises(Fault, match="holds no backup"):
        s3.choose("s3://bucket/elsewhere", "ml", ARN, str(tmp_path / "none"))


def test_controllers_that_back_up_to_s3_in_the_same_second_do_not_collide(
    tmp_path: Path, state: Path, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = []
    for host in ("ip-10-0-0-1", "ip-10-0-0-11.ec2.internal"):
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        names.append(s3.name("20261101T000000Z"))
        s3.upload(str(make(tmp_path / host, state)), f"s3://bucket/b/ml-abc/{names[-1]}")
    assert len(set(names)) == 2
    assert set(backups.finished(str(bucket / "b/ml-abc"))) == set(names)
    assert s3.choose("s3://bucket/b", "ml", ARN, str(tmp_path / "found"))[0].rpartition("/")[2] in names


def test_what_arrives_in_s3_is_read_again(tmp_path: Path, state: Path, bucket: Path) -> None:
    folder = make(tmp_path / "backup", state)
    bucket.joinpath("b").mkdir(parents=True)
    program = tmp_path / "bin/aws"
    program.write_text(FAKE_AWS.replace("shutil.copyfile(source, dest)", "Path(dest).write_bytes(b'other')"))
    with pytest.raises(Fault, match="manifest"):
        s3.upload(str(folder), "s3://bucket/b/ml-abc/20261101T000000Z")


def test_without_the_aws_command_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(s3, "run", lambda command, seconds: (127, "", f"{command[0]}: not found"))
    with pytest.raises(Fault, match="install the AWS CLI"):
        s3.download("s3://bucket/b", str(tmp_path / "to"))


@pytest.mark.parametrize(
    ("manifest", "present", "never", "lost"),
    [
        ({}, {}, "", ""),
        ({"slurm": "slurm 22.05.8"}, {}, "", ""),
        ({"cluster": "other"}, {}, "it is of cluster other", ""),
        ({"slurm": "slurm 25.05.1"}, {}, "newer version", ""),
        ({}, {"jobs": 2}, "", "2 jobs of the time since 20261130T120000Z"),
        ({}, {"clusters": ["ml", "second"]}, "", "other clusters in the database: second"),
    ],
)
def test_what_stands_against_a_restore(
    manifest: dict[str, str], present: dict[str, object], never: str, lost: str
) -> None:
    found = backups.obstacles({**ABOUT, **manifest}, "ml", "slurm 24.11.5", {"jobs": 0, "clusters": ["ml"], **present})
    assert [never in " ".join(found[0]), lost in " ".join(found[1])] == [True, True]
    assert [bool(found[0]), bool(found[1])] == [bool(never), bool(lost)]


def test_controllers_that_answer() -> None:
    said = "Slurmctld(primary) at ip-10-0-0-1 is UP\nSlurmctld(backup) at ip-10-0-0-11 is DOWN\n"
    assert controllers_up(said) == {"ip-10-0-0-1"}


# --- other controllers ---


class Connections:
    """A server to which these are connected: (host and port, whether it is the asking one)."""

    name = "db.example:3306"

    def __init__(self, *rows: tuple[str, str]) -> None:
        self.rows = [list(row) for row in rows]

    def ask(self, *statements: str) -> list[list[str]]:
        return self.rows


OURS, OUR_SLURMDBD, STANDBY = ("10.0.0.5:41000", "1"), ("10.0.0.5:40000", "0"), ("10.0.0.6:40000", "0")


def test_a_slurmdbd_on_another_machine_is_told_from_this_ones() -> None:
    assert dump.users_elsewhere(Connections(OURS, OUR_SLURMDBD), "acct") == []
    assert dump.users_elsewhere(Connections(("localhost", "1"), ("localhost", "0")), "acct") == []
    assert dump.users_elsewhere(Connections(OURS, OUR_SLURMDBD, STANDBY), "acct") == ["10.0.0.6"]


class Present:
    """A controller as a restore finds it."""

    cluster, slurm, database = "ml", "slurm 24.11.5", "acct"

    def __init__(self, *, slurmctld: set[str] | None = None, slurmdbd: list[str] | None = None) -> None:
        self.others_up, self.dbds_up = lambda: slurmctld or set(), lambda: slurmdbd or []

    def jobs_since(self, moment: str) -> int:
        return 0

    def clusters(self) -> list[str]:
        return ["ml"]


def test_a_restore_is_refused_while_another_slurmdbd_would_take_over() -> None:
    manifest = {**ABOUT, "files": {backups.DATABASE: {}}}
    slurm_restore.check(manifest, "b", Present(), replace_newer=True)
    with pytest.raises(Fault, match="systemctl stop slurmdbd on 10.0.0.6"):
        slurm_restore.check(manifest, "b", Present(slurmdbd=["10.0.0.6"]), replace_newer=True)
    with pytest.raises(Fault, match="systemctl stop slurmctld on two"):
        slurm_restore.check(manifest, "b", Present(slurmctld={"two"}), replace_newer=True)


def test_nothing_is_dropped_while_somebody_else_is_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dump, "pause", lambda seconds: None)
    server = Connections(OURS, STANDBY)
    with pytest.raises(Fault, match=r"in use from 10\.0\.0\.6; stop what uses it first"):
        dump.wait_until_unused(server, "acct", 0)
    monkeypatch.setattr(dump, "pause", lambda seconds: server.rows.pop())
    dump.wait_until_unused(server, "acct", 60)


@pytest.fixture
def dead() -> int:
    """The number of a process that has ended."""
    done = subprocess.Popen(["true"])
    done.wait()
    return done.pid


def test_a_backup_leaves_what_another_controller_is_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dead: int
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "ip-10-0-0-6")
    theirs = tmp_path / f"{leftovers.own_name('part')}-x/20261101T000000Z"
    theirs.mkdir(parents=True)
    monkeypatch.setattr(socket, "gethostname", lambda: "ip-10-0-0-5.internal")
    killed = tmp_path / leftovers.own_name("part").replace(f"p{os.getpid()}", f"p{dead}-y")
    killed.mkdir()

    def save(part: str) -> None:
        Path(part, "file").touch()
        assert theirs.exists()
        assert not killed.exists(), "a run of this controller that was killed left it"
        assert not backups.finished(str(tmp_path))

    def fail(part: str) -> None:
        raise Fault("no space")

    made = [Path(backups.add(str(tmp_path), "20261231T235959Z", save)) for _ in range(2)]
    assert [path.name for path in made] == ["20261231T235959Z", "20270101T000000Z"], "two began in the same second"
    assert all((path / "file").exists() for path in made)
    with pytest.raises(Fault, match="no space"):
        backups.add(str(tmp_path), "20261103T000000Z", fail)
    assert sorted(path.name for path in tmp_path.iterdir()) == [*(path.name for path in made), theirs.parent.name]


def test_only_litter_of_ended_processes_of_this_node_is_litter(monkeypatch: pytest.MonkeyPatch, dead: int) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Node-1.internal")
    mine = leftovers.own_name("proof")
    assert mine == f"hyperpod-lifecycle-proof-node-1-p{os.getpid()}"
    ended = mine.replace(f"p{os.getpid()}", f"p{dead}")
    assert leftovers.is_left(ended, "proof")
    assert leftovers.is_left(f".{ended}.sqsh", "proof")
    for name in (mine, f"{ended}0x", ended.replace("node-1", "node-11"), ended.replace("proof", "other"), f"x{ended}"):
        assert not leftovers.is_left(name, "proof"), name
