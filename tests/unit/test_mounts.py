# SPDX-License-Identifier: Apache-2.0
"""Mounts, fstab and unit names as text, and children with a time limit."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import mounts
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.limited import limited
from hypothesis import given
from hypothesis import strategies as st

MOUNTINFO = r"""
22 1 0:21 / / rw,relatime shared:1 - overlay overlay rw,lowerdir=/l
30 22 0:30 / /fsx rw,relatime shared:9 - autofs systemd-1 rw,fd=32
41 30 0:40 / /fsx rw,noatime - lustre 10.0.0.9@tcp:/q7x2nbev rw,flock
50 22 0:50 / /fsx2 rw,relatime shared:3 master:1 - nfs4 fs-1.example:/fsx rw
51 22 0:51 /part /mnt/with\040blank\134x rw - xfs /dev/sd\040a rw
52 22 0:52 / /home rw,relatime - autofs /etc/auto.home rw,fd=5
""".strip()


def test_a_mount_over_an_automount_is_on_top_whatever_the_order_of_lines() -> None:
    for text in (MOUNTINFO, "\n".join(reversed(MOUNTINFO.splitlines()))):
        here = mounts.at(mounts.parse(text), "/fsx")
        assert [mount.kind for mount in here] == ["autofs", "lustre"]
        assert [mounts.is_automount(mount) for mount in here] == [True, False]


def test_paths_are_compared_whole_and_blanks_come_back() -> None:
    found = mounts.parse(MOUNTINFO)
    assert [mount.source for mount in mounts.at(found, "/fsx2")] == ["fs-1.example:/fsx"]
    assert mounts.at(found, "/fs") == []
    (odd,) = mounts.at(found, "/mnt/with blank\\x")
    assert (odd.root, odd.source) == ("/part", "/dev/sd a")


def test_another_programs_autofs_is_no_automount_of_systemd() -> None:
    assert not mounts.is_automount(mounts.at(mounts.parse(MOUNTINFO), "/home")[0])


LUSTRE = mounts.source("lustre", "fs-1.example", "q7x2nbev", "/fsx")
NFS = mounts.source("openzfs", "fs-1.example", None, "/fsx")


@pytest.mark.parametrize(
    ("found", "wanted", "same"),
    [
        ("fs-1.example@tcp:/q7x2nbev", LUSTRE, True),
        ("10.0.0.9@tcp:/q7x2nbev", LUSTRE, True),
        ("10.0.0.8@efa,10.0.0.9@tcp:/q7x2nbev", LUSTRE, True),
        ("10.0.0.7@tcp:10.0.0.9@tcp:/q7x2nbev", LUSTRE, True),
        ("10.0.0.90@tcp:/q7x2nbev", LUSTRE, False),
        ("fs-1.example@tcp:/q7x2nbe", LUSTRE, False),
        ("fs-1.example@tcp:/q7x2nbev/sub", LUSTRE, False),
        ("fs-1.example:/q7x2nbev", LUSTRE, False),
        ("/dev/nvme1n1", LUSTRE, False),
        ("fs-1.example:/fsx", NFS, True),
        ("fs-1.example:/fsx/", NFS, True),
        ("10.0.0.9:/fsx", NFS, True),
        ("fs-2.example:/fsx", NFS, False),
        ("fs-1.example:/fsx/home", NFS, False),
        ("tmpfs", NFS, False),
    ],
)
def test_sources(found: str, wanted: str, same: bool) -> None:
    assert mounts.same_source(found, wanted, ["10.0.0.9"]) is same


@pytest.mark.parametrize(
    ("found", "kind", "same"),
    [
        ("lustre", "lustre", True),
        ("nfs4", "openzfs", True),
        ("nfs", "openzfs", True),
        ("fuse.lustre", "lustre", True),
        ("nfs4", "lustre", False),
        ("fuse.sshfs", "openzfs", False),
        ("ext4", "lustre", False),
    ],
)
def test_type_of_what_is_mounted(found: str, kind: str, same: bool) -> None:
    assert mounts.same_type(found, kind) is same


FSTAB = """\
# /dev/old /fsx ext4 defaults 0 0
/dev/root / ext4 defaults 0 1
\tfs-1.example@tcp:/old   /fsx/ lustre noatime,flock 0 0
/dev/b /fsx2 xfs defaults

fs-1.example@tcp:/old /fsx
"""
LINE = mounts.fstab_line("lustre", LUSTRE, "/fsx", ["noatime", "flock"])


def test_the_line_has_the_options_of_the_reference_and_our_mark() -> None:
    assert LINE.split() == [
        "fs-1.example@tcp:/q7x2nbev",
        "/fsx",
        "lustre",
        "noatime,flock,_netdev,x-systemd.automount,x-systemd.requires=network-online.target,x-hyperpod-lifecycle",
        "0",
        "0",
    ]
    assert mounts.fstab_line("openzfs", NFS, "/my home", ["nfsvers=4.2"]).split()[:3] == [
        "fs-1.example:/fsx",
        r"/my\040home",
        "nfs",
    ]


def test_only_the_paths_own_lines_are_found_and_replaced_by_one() -> None:
    assert [entry.number for entry in mounts.entries(FSTAB, "/fsx")] == [2, 5]
    after = mounts.with_line(FSTAB, "/fsx", LINE)
    lines = FSTAB.splitlines()
    assert after.splitlines() == [*lines[:2], LINE, *lines[3:5]]
    (entry,) = mounts.entries(after, "/fsx")
    assert (entry.source, mounts.MARK in entry.options) == (LUSTRE, True)
    assert mounts.with_line(after, "/fsx", LINE) == after


def test_a_line_of_an_earlier_version_is_proven_and_one_of_somebody_else_is_not() -> None:
    options = "noatime,flock,_netdev,x-systemd.automount,x-systemd.requires=network-online.target"
    for ours, proven in ((f"{options},{mounts.MARK}", True), (options, False), (f"{options},ro,{mounts.MARK}", False)):
        (entry,) = mounts.entries(f"{LUSTRE} /fsx lustre {ours} 0 0\n", "/fsx")
        assert mounts.is_proven(entry, "lustre", LUSTRE, ["noatime", "flock"]) is proven


def test_a_line_can_be_taken_out_again() -> None:
    assert mounts.with_line(mounts.with_line("# none\n", "/fsx", LINE), "/fsx", None) == "# none\n"


@pytest.mark.parametrize("before", ["", "# no line yet\n", "/dev/a / ext4 defaults 0 1"])
def test_a_new_line_comes_last(before: str) -> None:
    after = mounts.with_line(before, "/fsx", LINE)
    assert after.splitlines() == [*before.splitlines(), LINE]
    assert after.endswith("\n")


@given(st.text(st.characters(exclude_categories=("C", "Zl", "Zp")), min_size=1).map(lambda text: "/" + text.strip("/")))
def test_any_path_survives_fstab(path: str) -> None:
    if path != "/" and path == os.path.normpath(path):
        line = mounts.fstab_line("lustre", LUSTRE, path, [])
        assert [entry.path for entry in mounts.entries(line, path)] == [path]


UNITS = {
    "/fsx": "fsx.automount",
    "/home": "home.automount",
    "/fsx/my-data": r"fsx-my\x2ddata.automount",
    "/.hidden/.x": r"\x2ehidden-.x.automount",
    "/a b//ü_1:2/": r"a\x20b-\xc3\xbc_1:2.automount",
    "/": "-.automount",
}


@pytest.mark.parametrize("path", UNITS)
def test_unit_names(path: str) -> None:
    assert mounts.unit(path, "automount") == UNITS[path]


@pytest.mark.skipif(not shutil.which("systemd-escape"), reason="no systemd here")
@pytest.mark.parametrize("path", UNITS)
def test_systemd_names_them_alike(path: str) -> None:
    said = subprocess.run(
        ["systemd-escape", "--path", "--suffix=automount", path], capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == UNITS[path]


def test_a_child_returns_its_result_however_long() -> None:
    assert limited(lambda: ["x" * 200_000, {"a": 1}], 10) == ["x" * 200_000, {"a": 1}]


def test_a_childs_errors_come_back() -> None:
    with pytest.raises(PermissionError) as refused:
        limited(lambda: _raise(PermissionError(errno.EACCES, "no")), 10)
    assert refused.value.strerror == "no"
    with pytest.raises(ChildProcessError, match="ValueError: odd"):
        limited(lambda: _raise(ValueError("odd")), 10)
    with pytest.raises(ChildProcessError, match="killed"):
        limited(lambda: os.kill(os.getpid(), signal.SIGKILL), 10)


def test_a_hanging_child_is_given_up_and_holds_none_of_our_files() -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    with pytest.raises(TimeoutError, match=r"no answer within 0\.3 s"):
        limited(lambda: signal.pause(), 0.3)
    os.close(writer)
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_a_child_cannot_change_this_process(tmp_path: Path) -> None:
    before = Path.cwd()
    limited(lambda: os.chdir(tmp_path), 10)
    assert Path.cwd() == before


def _raise(error: Exception) -> None:
    raise error
