# SPDX-License-Identifier: Apache-2.0
"""State that several controllers share: real files and processes; tests/e2e has real controllers."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import mounts, shared_state, slurm
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.shared_state import SharedState
from ansible_collections.hyperpod.lifecycle.plugins.modules import (
    shared_folder_verify,
    slurm_daemon_verify,
    slurmctld_reload,
    slurmctld_state_share,
)

ARN = "arn:aws:sagemaker:us-west-2:111122223333:cluster/abcdefghijkl"
OLD = "arn:aws:sagemaker:us-west-2:111122223333:cluster/zyxwvutsrqpo"
#: What makes a folder one of a slurmctld that has run.
RUN = {"job_state": b"jobs\0", "heartbeat": b"1", "hash.7/job.17/script": b"#!/bin/sh\n"}


def fill(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Node:
    """One controller's own disk, and the folder that all share."""

    def __init__(self, root: Path, name: str, arn: str = ARN) -> None:
        self.local = root / name / "slurmctld"
        self.local.mkdir(parents=True)
        self.folder = root / "shared/aws/hyperpod/demo"
        self.shared = SharedState(self.folder, self.local, "demo", arn, os.getuid(), os.getgid())
        self.state = Path(self.shared.state)

    def left(self, **wishes: Any) -> list[str]:
        return [step.__name__ for step in self.shared.steps(**wishes)]

    def settle(self, **wishes: Any) -> list[str]:
        """As the module does it, without a slurmctld to stop."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with shared_state.lock(self.folder / shared_state.LOCK, self.local.parent.name, 20):
            steps = self.shared.steps(**wishes)
            for step in steps:
                step()
        return [step.__name__ for step in steps]

    def sees(self) -> dict[str, bytes]:
        return files(self.local)


@pytest.fixture
def node(tmp_path: Path) -> Callable[..., Node]:
    return lambda name="one", arn=ARN: Node(tmp_path, name, arn)


# --- seeding ---


def test_the_first_controller_makes_the_state_and_the_second_finds_it(node: Callable[..., Node]) -> None:
    one, two = node("one"), node("two")
    assert one.settle() == ["claim", "make_state", "link"]
    assert one.state.stat().st_mode & 0o777 == 0o700
    assert two.settle() == ["link"]
    fill(one.local, RUN)
    assert two.sees() == RUN
    assert one.left() == two.left() == []


def test_a_single_controllers_state_becomes_that_of_all(node: Callable[..., Node]) -> None:
    new, old = node("new"), node("old")
    fill(old.local, RUN)
    (old.local / "job_state").chmod(0o600)
    # The new controller comes first; its slurmctld (22.05) stands by in the empty folder.
    new.settle()
    fill(new.local, {"clustername": b"demo"})
    assert old.settle() == ["take_local_state", "link"]
    assert new.sees() == old.sees() == RUN
    assert (new.local / "job_state").stat().st_mode & 0o777 == 0o600
    (kept,) = old.local.parent.glob("slurmctld.aside-*")
    assert files(kept) == RUN


def test_many_at_once_end_well(tmp_path: Path) -> None:
    nodes = [Node(tmp_path, f"n{number}") for number in range(6)]
    fill(nodes[3].local, RUN)
    context = get_context("fork")
    running = [context.Process(target=each.settle) for each in nodes]
    for process in running:
        process.start()
    for process in running:
        process.join(30)
    assert [process.exitcode for process in running] == [0] * 6
    assert [each.left() for each in nodes] == [[]] * 6
    assert all(each.sees() == RUN for each in nodes)


# --- killed at any moment ---


def killed_at(number: int, work: Callable[[], Any]) -> bool:
    """Run in a child that dies before its Nth change; whether it did."""
    pid = os.fork()
    if pid == 0:
        count = 0

        def hook(event: str, _arguments: Any) -> None:
            nonlocal count
            if event in ("os.mkdir", "os.rename", "os.symlink", "os.remove", "os.rmdir", "os.chown", "open"):
                count += 1
                if count == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("case", ["nothing", "local", "foreign"])
def test_a_run_killed_at_any_moment_is_finished_by_the_next_on_any_controller(tmp_path: Path, case: str) -> None:
    wishes = {"set_aside": OLD}
    for number in range(1, 200):
        root = tmp_path / str(number)
        one, two = Node(root, "one"), Node(root, "two")
        if case == "local":
            fill(one.local, RUN)
        if case == "foreign":
            old = Node(root, "old", OLD)
            old.settle()
            fill(old.local, {"job_state": b"old"})
        killed = killed_at(number, partial(one.settle, **wishes))
        # The other one first: what it sees must be enough.
        two.settle(**wishes)
        one.settle(**wishes)
        assert one.left(**wishes) == two.left(**wishes) == []
        assert one.shared.identity()["arn"] == ARN
        assert one.sees() == two.sees() == (RUN if case == "local" else {})
        assert {path.name.partition(".aside")[0] for path in one.state.parent.iterdir()} == {"slurmctld"}
        if case == "foreign":
            (kept,) = one.state.parent.glob("*.aside-*")
            assert files(kept) == {"job_state": b"old"}
        if not killed:
            break
    assert number > 10, "it was killed at several moments"


# --- whose state it is ---


def test_an_older_clusters_state_is_refused_and_the_message_is_the_remedy(node: Callable[..., Node]) -> None:
    old = node("old", OLD)
    old.settle()
    fill(old.local, RUN)
    one, before = node(), files(old.folder)
    with pytest.raises(Fault) as refused:
        one.settle()
    assert f'controllers_adopt_state_of: "{OLD}"' in str(refused.value)
    assert f'controllers_set_aside_state_of: "{OLD}"' in str(refused.value)
    assert files(old.folder) == before
    assert not one.local.is_symlink()
    # A wish for another cluster's state, or one that stays in the settings for ever, does nothing.
    with pytest.raises(Fault):
        one.settle(adopt=ARN, set_aside="arn:other")
    assert one.settle(adopt=OLD) == ["claim", "link"]
    assert one.sees() == RUN
    assert one.left(set_aside=OLD) == []


def test_an_older_clusters_state_is_kept_when_a_new_one_begins(node: Callable[..., Node]) -> None:
    old = node("old", OLD)
    old.settle()
    fill(old.local, RUN)
    one, two = node("one"), node("two")
    assert one.settle(set_aside=OLD) == ["set_state_aside", "claim", "make_state", "link"]
    assert two.settle(set_aside=OLD) == ["link"]
    assert one.sees() == two.sees() == {}
    (kept,) = one.state.parent.glob("slurmctld.aside-*")
    assert files(kept) == RUN


def test_state_that_names_no_cluster_is_of_an_unknown_one(node: Callable[..., Node]) -> None:
    """As the public sample scripts leave it: the link is there, and nothing says whose state it leads to."""
    one = node()
    fill(one.state, RUN)
    one.local.rmdir()
    one.local.symlink_to(one.state)
    with pytest.raises(Fault, match='controllers_adopt_state_of: "unknown"'):
        one.settle()
    assert one.settle(adopt="unknown") == ["claim"]
    assert one.sees() == RUN


def test_an_empty_folder_of_an_older_cluster_is_nobodys(node: Callable[..., Node]) -> None:
    node("old", OLD).settle()
    one = node()
    assert one.settle() == ["claim", "link"]
    assert one.left() == []


def test_local_state_beside_the_shared_one_is_refused(node: Callable[..., Node]) -> None:
    one, two = node("one"), node("two")
    one.settle()
    fill(one.local, RUN)
    fill(two.local, {"job_state": b"other"})
    with pytest.raises(Fault, match="controllers_set_aside_local_state: true"):
        two.settle()
    assert two.sees() == {"job_state": b"other"}
    assert two.settle(set_aside_local=True) == ["link"]
    assert two.sees() == RUN
    (kept,) = two.local.parent.glob("slurmctld.aside-*")
    assert files(kept) == {"job_state": b"other"}


def test_a_link_to_another_place_and_another_uid_are_refused(node: Callable[..., Node], tmp_path: Path) -> None:
    one, two = node("one"), node("two")
    one.settle()
    two.shared.uid += 1
    with pytest.raises(Fault, match="same uid"):
        two.left()
    one.local.unlink()
    one.local.symlink_to(tmp_path)
    with pytest.raises(Fault, match="is a link to"):
        one.left()


def test_a_broken_identity_is_not_taken_for_none(node: Callable[..., Node]) -> None:
    one = node()
    one.settle()
    (one.folder / shared_state.IDENTITY).write_text("{")
    with pytest.raises(Fault, match=shared_state.IDENTITY):
        one.left()


# --- the lock ---

HOLD = """
import sys
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import shared_state
with shared_state.lock(sys.argv[1], "controller-machine-2 (10.0.0.2)", 5):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    path = tmp_path / "lock"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    yield path, process
    process.kill()
    process.wait()


def test_who_waits_too_long_is_told_who_holds_the_lock(held: tuple[Path, subprocess.Popen[str]]) -> None:
    with (
        pytest.raises(Fault, match=r"controller-machine-2 \(10\.0\.0\.2\) \(since 2"),
        shared_state.lock(held[0], "one", 0.5),
    ):
        pytest.fail("two have one lock")


def test_a_killed_holder_leaves_no_lock(held: tuple[Path, subprocess.Popen[str]]) -> None:
    held[1].kill()
    with shared_state.lock(held[0], "one", 20):
        assert json.loads(held[0].read_text())["holder"] == "one"
    assert held[0].read_text() == ""


def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(Fault, match="no locks"), shared_state.lock(tmp_path / "lock", "one", 5):
        pytest.fail("there is no lock")


# --- the folder ---

ROOT_MOUNT = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "ext4 at /"),
        ("2 1 0:5 / /fsx rw shared:1 - lustre 10.0.0.9@tcp:/abc rw,flock,lazystatfs", ""),
        ("2 1 0:5 / /fsx rw - lustre 10.0.0.9@tcp:/abc rw,lazystatfs", "without the option flock"),
        ("2 1 0:5 / /fsx rw - lustre 10.0.0.9@tcp:/abc rw,localflock", "localflock"),
        ("2 1 0:5 / /fsx rw - nfs4 fs:/fsx rw,vers=4.2,local_lock=none", ""),
        ("2 1 0:5 / /fsx rw - nfs fs:/fsx rw,vers=3,nolock", "nolock"),
        ("2 1 0:5 / /fsx rw - nfs4 fs:/fsx rw,local_lock=flock", "local_lock=flock"),
        ("2 1 0:5 / /fsx rw - fuse.lustre 10.0.0.9@tcp:/abc rw,user_id=0", ""),
        ("2 1 0:5 / /fsx rw - tmpfs tmpfs rw", "tmpfs at /fsx"),
        ("2 1 0:5 / /fsx2 rw - lustre 10.0.0.9@tcp:/abc rw,flock", "ext4 at /"),
    ],
)
def test_a_mount_that_others_cannot_share_is_known(line: str, reason: str) -> None:
    said = mounts.unshared(mounts.covering(mounts.parse(ROOT_MOUNT + line), "/fsx/shared"))
    assert reason in said
    assert bool(reason) == bool(said)


def test_the_probe_leaves_nothing_and_sees_locks_that_do_not_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class User:
        pw_uid, pw_gid = os.getuid(), os.getgid()

    assert shared_folder_verify.probe(tmp_path, "probe", User) == ""
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    assert "two processes" in shared_folder_verify.probe(tmp_path, "probe", User)
    assert list(tmp_path.iterdir()) == []


# --- Slurm ---


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("StateSaveLocation=/var/spool/slurmctld\n", "/var/spool/slurmctld"),
        ("statesavelocation = /var/lib/slurm/state/ # ours", "/var/lib/slurm/state"),
        ("ClusterName=demo\n", "/var/spool/slurmctld"),
    ],
)
def test_where_the_state_is(text: str, path: str) -> None:
    assert slurmctld_state_share.location(text, "/var/spool/slurmctld", "/fsx") == path


@pytest.mark.parametrize(
    ("path", "reason"),
    [("/var/spool", "slurmctld only"), ("/", "slurmctld only"), ("/fsx/a/b", "controllers_enabled: false")],
)
def test_where_the_state_must_not_be(path: str, reason: str) -> None:
    with pytest.raises(Fault, match=reason):
        slurmctld_state_share.location(f"StateSaveLocation={path}\n", "/var/spool/slurmctld", "/fsx")


PING = "Slurmctld(primary) at a is {}\nSlurmctld(backup1) at b is {}\nSlurmctld(backup2) at c is UP\n** RESTORE **\n"


@pytest.mark.parametrize(
    ("first", "second", "waiting"),
    [("UP", "UP", "bc"), ("DOWN", "UP", "c"), ("DOWN", "DOWN", ""), ("UP", "DOWN", "bc")],
)
def test_who_stands_by(first: str, second: str, waiting: str) -> None:
    assert "".join(name for name in "abc" if slurm.another_in_charge(PING.format(first, second), name)) == waiting
    assert not slurm.another_in_charge(PING.format(first, second), "d")


@pytest.mark.parametrize(
    ("name", "first", "answers", "expected"),
    [
        ("b", "UP", True, True),
        # Its primary has died, or has never run: then a standby answers only once it is in charge.
        ("b", "DOWN", False, True),
        ("b", "DOWN", True, False),
        ("a", "UP", True, False),
        # The only one that could answer for a primary: that is waited for.
        ("a", "DOWN", False, False),
    ],
)
def test_a_standby_is_not_asked_for_its_settings(
    monkeypatch: pytest.MonkeyPatch, name: str, first: str, answers: bool, expected: bool
) -> None:
    told = {"ping": (0, PING.format(first, "UP"), ""), "show": (0 if answers else 1, "", "")}
    monkeypatch.setattr(slurmctld_reload, "run", lambda command, _seconds: told[command[1]])
    monkeypatch.setattr(slurmctld_reload.socket, "gethostname", lambda: name)
    assert slurmctld_reload.stands_by("scontrol") is expected


class Watch(slurm_daemon_verify.Watch):
    """A look at a daemon of which everything that is asked is given: what scontrol answers, who accepts connections."""

    def __init__(self, accepting: tuple[str, ...], **answers: tuple[int, str]) -> None:
        self.controllers, self.accepts, self.answers = ["10.0.0.1", "10.0.0.2"], accepting, answers
        self.name, self.address, self.daemon, self.port = "b", "10.0.0.2", "slurmctld", 6817

    def run(self, *command: str) -> tuple[int, str]:
        return (0, "0") if command[0] == "systemctl" else self.answers[command[-1]]

    def scontrol(self, *arguments: str) -> tuple[int, str]:
        return self.answers[arguments[0]]

    def accepting(self) -> int:
        return len(self.accepts)


@pytest.mark.parametrize(
    ("accepting", "state"),
    [
        ((), slurm_daemon_verify.SILENT),
        (("10.0.0.2",), slurm_daemon_verify.SILENT),
        (("10.0.0.1", "10.0.0.2"), slurm_daemon_verify.MUTE),
    ],
)
def test_a_standby_alone_is_no_controller_that_answers(accepting: tuple[str, ...], state: str) -> None:
    failing = (1, "scontrol: fatal: Could not establish a configuration source")
    watch = Watch(accepting, ping=failing, **{"--oneliner": failing})
    assert watch.compute()[0] == state
    assert watch.login()[0] == state
    rejected = (1, "slurm_load_node error: Protocol authentication error")
    watch = Watch(("10.0.0.1", "10.0.0.2"), ping=rejected, **{"--oneliner": rejected})
    assert watch.compute()[0] == slurm_daemon_verify.BROKEN
    assert "/etc/munge/munge.key" in watch.compute()[1]


@pytest.mark.parametrize(("found", "note"), [("Match", ""), ("Different Ours=0x1 Slurmctld=0x2", "not the same on b")])
def test_a_standby_with_other_settings_is_named(found: str, note: str) -> None:
    said = Watch((), show=(0, f"GresTypes = gpu\nHASH_VAL                = {found}\n")).unlike()
    assert note in said
    assert bool(note) == bool(said)
