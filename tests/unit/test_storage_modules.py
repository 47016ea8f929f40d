# SPDX-License-Identifier: Apache-2.0
"""Parts of the storage modules that need neither root nor a mount."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.limited import limited
from ansible_collections.hyperpod.lifecycle.plugins.modules import shared_mount


def share(**changes: object) -> shared_mount.Share:
    wanted = {"path": "/fsx", "kind": "lustre", "dns_name": "fs-1.example", "mount_name": "abc", "export": "/fsx"}
    params = {**wanted, "attempt_seconds": 5, "resolve_seconds": 0, "wait_seconds": 0, **changes}
    found: shared_mount.Share = shared_mount.Share(SimpleNamespace(params=params, check_mode=False))
    return found


def test_a_probe_leaves_nothing_and_clears_what_an_attempt_before_has_left(tmp_path: Path) -> None:
    (tmp_path / f"probe-{os.getuid()}").write_text("left")
    shared_mount.write_probe(str(tmp_path), "probe")
    assert list(tmp_path.iterdir()) == []


def test_a_probe_does_not_follow_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / f"probe-{os.getuid()}").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic"):
        shared_mount.write_probe(str(tmp_path), "probe")
    assert victim.read_text() == "precious"


def test_many_nodes_probe_one_folder_at_once(tmp_path: Path) -> None:
    shares = [share() for _ in range(16)]
    assert len({each.probe_name for each in shares}) == len(shares)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda each: shared_mount.write_probe(str(tmp_path), each.probe_name), shares))
    assert list(tmp_path.iterdir()) == []


def test_a_mount_point_is_no_link_and_never_changed(tmp_path: Path) -> None:
    limited(lambda: shared_mount.make_folder(str(tmp_path / "a/b")), 5)
    assert (tmp_path / "a/b").stat().st_mode & 0o777 == 0o755
    (tmp_path / "a").chmod(0o700)
    limited(lambda: shared_mount.make_folder(str(tmp_path / "a")), 5)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(OSError, match="it leads to"):
        shared_mount.make_folder(str(tmp_path / "link"))


def test_kernels_are_compared_by_number() -> None:
    kernels = ["6.8.0-1021-aws", "6.8.0-999-aws", "5.15.0-1060-aws", "6.11.0-8-generic", "6.8.0-1021"]
    assert sorted(kernels, key=shared_mount.version_key) == [kernels[2], kernels[1], kernels[4], kernels[0], kernels[3]]


@pytest.mark.parametrize(
    ("kind", "status", "noted"), [("lustre", 1, True), ("lustre", 0, False), ("openzfs", 1, False)]
)
def test_a_next_kernel_without_lustre_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, status: int, noted: bool
) -> None:
    (tmp_path / "vmlinuz-999.1.0-2-aws").touch()
    asked = []
    monkeypatch.setattr(shared_mount, "BOOT", tmp_path)
    monkeypatch.setattr(shared_mount, "run", lambda *command: (asked.append(command), (status, ""))[1])
    each = share(kind=kind)
    each.next_kernel()
    assert bool(each.notes) is noted
    assert asked == ([("modinfo", "-k", "999.1.0-2-aws", "lustre")] if kind == "lustre" else [])


def test_an_unknown_name_is_named_when_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> list[str]:
        raise FileNotFoundError(2, "Name or service not known")

    monkeypatch.setattr(shared_mount, "resolve", unknown)
    with pytest.raises(shared_mount.Fault, match=r"fs-1\.example .*no address within 0 s: Name or service not known"):
        share().resolve()
