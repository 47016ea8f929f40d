# SPDX-License-Identifier: Apache-2.0
"""Parts of the storage modules that need neither root nor a mount."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import mount_faults, mounting, mounts
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.limited import limited


def share(**changes: object) -> mounting.Share:
    wanted = {"path": "/fsx", "kind": "lustre", "dns_name": "fs-1.example", "mount_name": "abc", "export": "/fsx"}
    params = {
        **wanted,
        "options": [],
        "probe_user": "ubuntu",
        "attempt_seconds": 5,
        "resolve_seconds": 0,
        "wait_seconds": 0,
        **changes,
    }
    found: mounting.Share = mounting.Share(SimpleNamespace(params=params, check_mode=False))
    return found


def test_a_probe_leaves_nothing_and_clears_what_a_killed_run_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(_handle: int) -> None:
        os._exit(9)

    with monkeypatch.context() as killed:
        killed.setattr(os, "fsync", die)
        with pytest.raises(ChildProcessError):
            limited(lambda: mounting.write_probe(str(tmp_path)), 5)
    assert len(list(tmp_path.iterdir())) == 1
    mounting.write_probe(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_probe_does_not_follow_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounting, "own_name", lambda kind: "probe")
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / ".probe").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic"):
        mounting.write_probe(str(tmp_path))
    assert victim.read_text() == "precious"


def test_many_processes_probe_one_folder_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: limited(lambda: mounting.write_probe(str(tmp_path)), 20), range(16)))
    assert list(tmp_path.iterdir()) == []


def test_a_mount_point_is_no_link_and_never_changed(tmp_path: Path) -> None:
    limited(lambda: mounting.make_folder(str(tmp_path / "a/b")), 5)
    assert (tmp_path / "a/b").stat().st_mode & 0o777 == 0o755
    (tmp_path / "a").chmod(0o700)
    limited(lambda: mounting.make_folder(str(tmp_path / "a")), 5)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(OSError, match="it leads to"):
        mounting.make_folder(str(tmp_path / "link"))


def test_kernels_are_compared_by_number() -> None:
    kernels = ["6.8.0-1021-aws", "6.8.0-999-aws", "5.15.0-1060-aws", "6.11.0-8-generic", "6.8.0-1021"]
    assert sorted(kernels, key=mounting.version_key) == [kernels[2], kernels[1], kernels[4], kernels[0], kernels[3]]


@pytest.mark.parametrize(
    ("kind", "status", "noted"), [("lustre", 1, True), ("lustre", 0, False), ("openzfs", 1, False)]
)
def test_a_next_kernel_without_lustre_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, status: int, noted: bool
) -> None:
    (tmp_path / "vmlinuz-999.1.0-2-aws").touch()
    asked = []
    monkeypatch.setattr(mounting, "BOOT", tmp_path)
    monkeypatch.setattr(mounting, "run", lambda *command: (asked.append(command), (status, ""))[1])
    each = share(kind=kind)
    each.next_kernel()
    assert bool(each.notes) is noted
    assert asked == ([("modinfo", "-k", "999.1.0-2-aws", "lustre")] if kind == "lustre" else [])


def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, autofs: bool, said: str = "") -> list[tuple[str, ...]]:
    """fstab, autofs and systemd of a node without anything mounted, where each attempt to mount ends with `said`."""
    for name, path in (("FSTAB", "fstab"), ("AUTOFS", "autofs"), ("FILE_SYSTEM_TYPES", "filesystems")):
        monkeypatch.setattr(mounting, name, tmp_path / path)
    (tmp_path / "filesystems").write_text("nodev\tproc\n" + ("nodev\tautofs\n" if autofs else ""))
    if autofs:
        (tmp_path / "autofs").touch()
    asked = []

    def run(*command: str, seconds: float = 60) -> tuple[int, str]:
        asked.append(command)
        return (1, "Job failed.") if command[1] == "start" else (0, "")

    def replace(_module: object, path: Path, before: str, after: str, _mode: int) -> bool:
        path.write_text(after)
        return before != after

    monkeypatch.setattr(mounting, "run", run)
    monkeypatch.setattr(mounting, "replace", replace)
    monkeypatch.setattr(mounting, "resolve", lambda name: ["10.0.0.9"])
    for name, answer in (("here", None), ("client", None), ("make_folder", None), ("mount_words", said)):
        monkeypatch.setattr(mounting.Share, name, lambda self, *_, answer=answer: answer)
    return asked


@pytest.mark.parametrize("kind", ["lustre", "openzfs"])
def test_without_autofs_it_is_mounted_at_boot_and_that_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    asked = machine(tmp_path, monkeypatch, autofs=False)
    each = share(kind=kind, options=["noatime"])
    assert each.configure()[0]
    (line,) = (tmp_path / "fstab").read_text().splitlines()
    assert "nofail" in line
    assert "automount" not in line
    assert [note for note in each.notes if "no autofs" in note]
    again = share(kind=kind, options=["noatime"])
    assert not again.configure()[0]
    assert again.notes == []
    with pytest.raises(mounting.Fault):
        again.mount()
    assert [words[2] for words in asked if words[1] == "start"] == ["fsx.mount"]


def test_another_kernel_changes_when_it_is_mounted_and_keeps_what_is_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fstab = tmp_path / "fstab"
    lines = {}
    for autofs in (True, False):
        folder = tmp_path / str(autofs)
        folder.mkdir()
        machine(folder, monkeypatch, autofs=autofs)
        monkeypatch.setattr(mounting, "FSTAB", fstab)
        each = share(options=["noatime"])
        assert each.configure()[0]
        each.settle(works=True)
        lines[autofs] = fstab.read_text()
        assert mounts.UNPROVEN not in lines[autofs]
    assert ("x-systemd.automount" in lines[True], "x-systemd.automount" in lines[False]) == (True, False)
    (tmp_path / "False/autofs").touch()
    (tmp_path / "False/filesystems").write_text("nodev\tautofs\n")
    assert share(options=["noatime"]).configure()[0]
    assert fstab.read_text() == lines[True], "proven already, and back again"
    assert not share(options=["noatime"]).configure()[0]


@pytest.mark.parametrize("autofs", [True, False])
def test_what_failed_its_proof_does_not_stay_in_fstab_and_what_was_proven_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autofs: bool
) -> None:
    asked = machine(tmp_path, monkeypatch, autofs=autofs, said="mount.lustre: Input/output error Is the MGS running?")
    fstab = tmp_path / "fstab"
    fstab.write_text("/dev/a / ext4 defaults 0 1\n")
    each = share(options=["noatime"])
    each.configure()
    with pytest.raises(mounting.Fault, match="security group"):
        each.mount()
    assert fstab.read_text() == "/dev/a / ext4 defaults 0 1\n"
    assert ("systemctl", "stop", "fsx.automount", "fsx.mount") in asked
    each.configure()
    each.settle(works=True)
    proven = fstab.read_text()
    with pytest.raises(mounting.Fault):
        share(options=["noatime"]).mount()
    assert fstab.read_text() == proven


def test_what_no_retry_heals_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = machine(tmp_path, monkeypatch, autofs=False, said="mount: /fsx: unknown filesystem type 'lustre'.")
    with pytest.raises(mounting.Fault, match="unknown filesystem type 'lustre'.; install the lustre client"):
        share(wait_seconds=10_000).mount()
    assert len([words for words in asked if words[1] == "start"]) == 1


def test_what_may_heal_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(tmp_path, monkeypatch, autofs=False, said="mount.nfs: Connection timed out for fs-1.example:/fsx on /fsx")
    each = share(kind="openzfs", wait_seconds=10_000)
    attempts = iter(["mounting: mount.nfs: Connection timed out", "mounting: Host is down", ""])
    monkeypatch.setattr(each, "attempt", lambda start: next(attempts))
    monkeypatch.setattr(mounting.time, "sleep", lambda seconds: None)
    each.until_proven(start=True)
    assert list(attempts) == []


#: What the programs say, and a word of the remedy. Only the last ones may heal.
FINAL = {
    "mount: /fsx: unknown filesystem type 'lustre'.": "client",
    "mount.lustre: mount a@tcp:/b at /fsx failed: No such device Are the lustre modules loaded?": "client",
    "mount.lustre: mount a@tcp:/b at /fsx failed: Invalid argument": "fsx_lustre_options",
    "mount.nfs: an incorrect mount option was specified for /home": "fsx_lustre_options",
    "mount.nfs: Protocol not supported for a:/fsx on /home": "fsx_lustre_options",
    "systemd does not start fsx.automount: Failed to start: Operation not supported": "kernel",
    "mount.nfs: access denied by server while mounting a:/fsx": "grant",
    "mounting a:/fsx failed, reason given by server: No such file or directory": "mount name",
    "writing to it: Read-only file system": "read-only",
    "writing to it: No space left on device": "full",
}
HEALS = {
    "mount.lustre: mount a@tcp:/b at /fsx failed: Input/output error Is the MGS running?": True,
    "mount.nfs: Connection timed out for a:/fsx on /home": True,
    "no answer within 30 s": True,
    "writing to it: Input/output error": False,
    "systemd does not start fsx.mount: Job for fsx.mount failed.": False,
    "systemd has not mounted it (ENODEV)": False,
}


@pytest.mark.parametrize("said", FINAL)
def test_a_remedy_fits_what_was_said(said: str) -> None:
    advice = mount_faults.advice(said, "lustre", "fsx.mount")
    assert advice.final
    assert FINAL[said] in advice.remedy
    assert "security group" not in advice.remedy


@pytest.mark.parametrize("said", HEALS)
def test_the_security_group_is_named_only_where_nobody_was_reached(said: str) -> None:
    advice = mount_faults.advice(said, "openzfs", "fsx.mount")
    assert not advice.final
    assert ("security group" in advice.remedy) is HEALS[said]
    assert ("2049" in advice.remedy) is HEALS[said]


def test_what_is_no_name_is_not_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(mounting.Fault, match="is not a DNS name"):
        share(dns_name="a" * 64 + ".example", resolve_seconds=10_000).resolve()


def test_an_unknown_name_is_named_when_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> list[str]:
        raise FileNotFoundError(2, "Name or service not known")

    monkeypatch.setattr(mounting, "resolve", unknown)
    with pytest.raises(mounting.Fault, match=r"fs-1\.example .*no address within 0 s: Name or service not known"):
        share().resolve()
