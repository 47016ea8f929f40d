# SPDX-License-Identifier: Apache-2.0
"""Shared storage on a whole cluster, with file servers that misbehave as the lab's switches say.

The tests share one lab. The file servers are fakes; mount, fstab, systemd's automount and what the node sees are real.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import nodes
import pytest
from conftest import (
    AUTOFS,
    MOLECULE,
    NO_AUTOFS,
    THOROUGH,
    install_molecule,
    lab_called,
    run_molecule,
    shape,
)
from nodes import COMPUTE, CONTROLLER, GROUP_VARS, LOGIN, apply, changed_tasks, last_line, must

from hyperpod_lab.image import Release
from hyperpod_lab.lab import Lab

VICTIM = "compute-nodes-2"
NODES = (CONTROLLER, LOGIN, COMPUTE, VICTIM)
LUSTRE = "fs-12345678a90b01cde.fsx.us-west-2.amazonaws.com"
OPENZFS = "fs-87654321e90d01abc.fsx.us-west-2.amazonaws.com"
SETTINGS = f"{GROUP_VARS}/all.yml"
#: Short limits, where the test is that they are kept.
SHORT = b"fsx_resolve_seconds: 2\nfsx_wait_seconds: 4\nfsx_attempt_seconds: 2\n"
FAILED = 4


@pytest.fixture(scope="module")
def lab(upload: Callable[..., Path]) -> Iterator[Lab]:
    with lab_called("storage", NO_AUTOFS) as lab:
        for result in lab.up(shape(compute_nodes=2), upload_folder=upload()):
            assert result.exit_code == 0, result.summary
        yield lab


@pytest.fixture
def victim(lab: Lab) -> Iterator[str]:
    """A node that has not mounted anything yet; healthy again afterwards."""
    forget_mounts(lab, VICTIM)
    yield VICTIM
    lab.storage.heal()
    forget_mounts(lab, VICTIM)


def bash(lab: Lab, node: str, script: str, **options: Any) -> str:
    """Ends at the first command that fails."""
    return nodes.bash(lab, node, f"set -eu\n{script}", **options)


def forget_mounts(lab: Lab, node: str) -> None:
    """A node as before its first run, as far as storage goes."""
    bash(
        lab,
        node,
        r"""
        rm -f /etc/hyperpod-lifecycle/inventory/group_vars/all.yml
        # Either may be missing; that nothing stays mounted is seen to below.
        cd /; systemctl stop fsx.automount home.automount 2>/dev/null || true
        while read -r path; do umount --lazy "$path"; done < <(
            awk '$5 == "/fsx" || $5 == "/home" { print $5 }' /proc/self/mountinfo)
        sed -i '/x-hyperpod-lifecycle/d' /etc/fstab
        systemctl daemon-reload
        """,
    )


#: Runs of storage alone.
storage = partial(apply, tags="fsx,homes")


def refused(lab: Lab, node: str, *words: str) -> None:
    """The run ends by itself, names the storage's concern in its last line, and says all of these words."""
    done = storage(lab, node)
    assert done.returncode == FAILED, done.stdout + done.stderr
    assert "failed: fsx: " in last_line(done)
    for word in words:
        assert word in done.stdout + done.stderr


@contextmanager
def later(seconds: float, action: Callable[[], object]) -> Iterator[None]:
    """What happens meanwhile."""
    timer = threading.Timer(seconds, action)
    timer.start()
    try:
        yield
    finally:
        timer.join()


def mounts(lab: Lab, node: str, path: str) -> list[str]:
    """The sources of the file systems at a path, without systemd's automount."""
    rows = [line.split(" - ") for line in lab.get(node, "/proc/self/mountinfo").decode().splitlines()]
    return [right.split()[1] for left, right in rows if left.split()[4] == path and not right.startswith("autofs ")]


def fstab(lab: Lab, node: str) -> list[str]:
    return [line for line in lab.get(node, "/etc/fstab").decode().splitlines() if ".fsx." in line]


# --- the default cluster ---


@pytest.mark.parametrize("path", ["/fsx", "/home"])
def test_a_file_of_one_node_is_read_on_the_others(lab: Lab, path: str) -> None:
    for node in NODES:
        bash(lab, node, f"hostname >{path}/from-{node}")
    for node in NODES:
        text = bash(lab, node, f"cat {path}/from-*")
        assert sorted(text.split()) == sorted(each.host for each in lab.nodes())
    bash(lab, LOGIN, f"rm {path}/from-*")


def test_homes_are_shared(lab: Lab) -> None:
    bash(lab, LOGIN, "cd && pwd >where && mkdir -p .ssh && echo key >.ssh/authorized_keys", user="ubuntu")
    job = "cd && cat where .ssh/authorized_keys && stat --format=%U where"
    done = bash(lab, LOGIN, f"srun --nodes=2 --ntasks=2 bash -c '{job}'", user="ubuntu")
    assert sorted(done.split()) == sorted(["/home/ubuntu", "key", "ubuntu"] * 2)
    assert (
        bash(lab, CONTROLLER, "stat --format=%U ~ubuntu/where ~ubuntu/.ssh/authorized_keys").split() == ["ubuntu"] * 2
    )


def test_more_runs_change_nothing_and_let_a_job_write(lab: Lab) -> None:
    node = lab.node(COMPUTE)
    job = "exec 3>/fsx/held; while sleep 0.2; do date +%s.%N >&3; done"
    number = bash(
        lab,
        LOGIN,
        f"cd / && sbatch --parsable --nodelist={node.host} --output=/dev/null --wrap='{job}'",
        user="root",
    ).strip()
    deadline = time.monotonic() + 20
    # The job makes the file; until then there is none.
    while not bash(lab, LOGIN, "wc -c </fsx/held 2>/dev/null || true").strip("0\n"):
        assert time.monotonic() < deadline, "the job has not begun"
        time.sleep(0.2)
    before, lines = [mounts(lab, COMPUTE, path) for path in ("/fsx", "/home")], fstab(lab, COMPUTE)
    assert [len(each) for each in before] == [1, 1]
    assert len(lines) == 2
    for _ in range(20 if THOROUGH else 3):
        assert changed_tasks(must(storage(lab, COMPUTE))) == 0
    assert [mounts(lab, COMPUTE, path) for path in ("/fsx", "/home")] == before
    assert fstab(lab, COMPUTE) == lines
    size = int(bash(lab, LOGIN, "wc -c </fsx/held"))
    time.sleep(1)
    assert int(bash(lab, LOGIN, "wc -c </fsx/held")) > size, "the job cannot write any more"
    assert "RUNNING" in bash(lab, LOGIN, f"squeue --noheader --format=%T --jobs={number}")
    bash(lab, LOGIN, f"scancel {number}; rm /fsx/held")


def test_storage_is_there_after_a_reboot(lab: Lab) -> None:
    lab.reboot(COMPUTE)
    assert bash(lab, COMPUTE, "ls -d ~ubuntu/where; touch /fsx/after; rm /fsx/after").strip() == "/home/ubuntu/where"
    assert changed_tasks(must(storage(lab, COMPUTE))) == 0


# --- kernels with and without autofs ---

WITH, WITHOUT = "x-systemd.automount", "nofail"


def test_without_autofs_it_is_mounted_at_boot(lab: Lab) -> None:
    for node, has, lacks in ((LOGIN, WITHOUT, WITH), *([(COMPUTE, WITH, WITHOUT)] if AUTOFS else [])):
        lines = fstab(lab, node)
        assert len(lines) == 2
        assert all(has in line and lacks not in line for line in lines), lines


def test_at_boot_what_can_be_mounted_is_and_a_server_that_is_away_does_not_stop_it(lab: Lab) -> None:
    lab.storage.set(LUSTRE, fail_mounts=1000)
    lab.reboot(LOGIN)
    assert [len(mounts(lab, LOGIN, path)) for path in ("/fsx", "/home")] == [0, 1]
    lab.storage.heal()
    must(storage(lab, LOGIN))
    assert [len(mounts(lab, LOGIN, path)) for path in ("/fsx", "/home")] == [1, 1]
    assert changed_tasks(must(storage(lab, LOGIN))) == 0


def test_another_kernel_and_back(lab: Lab) -> None:
    """A node's next boot, in short: systemd looks for the device when it begins."""
    if not AUTOFS:
        pytest.skip("this kernel has no autofs")
    unmount = "cd /; systemctl stop fsx.automount home.automount fsx.mount home.mount || true"
    grown = "umount /proc/filesystems; mknod /dev/autofs c 10 235; systemctl daemon-reexec"
    lost = "rm /dev/autofs; mount --bind /run/fake_filesystems /proc/filesystems; systemctl daemon-reexec"
    before = fstab(lab, LOGIN)
    # The first also stands for what is mounted while the line changes.
    for change, option in ((grown, WITH), (f"{unmount}; {lost}", WITHOUT)):
        bash(lab, LOGIN, change)
        assert changed_tasks(must(storage(lab, LOGIN))) > 0
        assert all(option in line for line in fstab(lab, LOGIN))
        assert [len(mounts(lab, LOGIN, path)) for path in ("/fsx", "/home")] == [1, 1]
        assert changed_tasks(must(storage(lab, LOGIN))) == 0
    assert fstab(lab, LOGIN) == before


# --- what heals ---


def test_slow_to_become_writable(lab: Lab, victim: str) -> None:
    lab.storage.slow(LUSTRE, 6)
    lab.storage.slow(OPENZFS, 9)
    must(storage(lab, victim))


def test_mounting_and_writing_fail_some_times(lab: Lab, victim: str) -> None:
    lab.storage.set(LUSTRE, fail_mounts=2, fail_writes=1)
    lab.storage.set(OPENZFS, fail_mounts=1, fail_writes=2)
    must(storage(lab, victim))
    for name in (LUSTRE, OPENZFS):
        assert (lab.storage.get(name).fail_mounts, lab.storage.get(name).fail_writes) == (0, 0)
    assert changed_tasks(must(storage(lab, victim))) == 0


def test_a_name_that_comes_late(lab: Lab, victim: str) -> None:
    lab.storage.set_names(victim, known=False)
    with later(6, lambda: lab.storage.set_names(victim, known=True)):
        must(storage(lab, victim))


def test_a_server_that_hangs_and_comes_back(lab: Lab, victim: str) -> None:
    must(storage(lab, victim))
    lab.put(victim, b"fsx_attempt_seconds: 2\n", SETTINGS)
    lab.storage.set(LUSTRE, hang=True)
    with later(8, lambda: lab.storage.set(LUSTRE, hang=False)):
        must(storage(lab, victim))


def test_root_is_nobody(lab: Lab, victim: str) -> None:
    for name in (LUSTRE, OPENZFS):
        lab.storage.set(name, root_squash=True)
        lab.storage.path(name).chmod(0o1777)
    try:
        must(storage(lab, victim))
        assert bash(lab, victim, "cd && touch squashed && stat --format=%U squashed", user="ubuntu").strip() == "ubuntu"
        assert changed_tasks(must(storage(lab, victim))) == 0
    finally:
        lab.storage.heal()
        for name in (LUSTRE, OPENZFS):
            lab.storage.path(name).chmod(0o755)


def test_what_the_agent_has_mounted_is_left_alone(lab: Lab, victim: str) -> None:
    bash(
        lab,
        victim,
        f"mkdir -p /fsx; mount -t lustre -o noatime,flock {LUSTRE}@tcp:/1abcdefg /fsx;"
        f"mount -t nfs -o nfsvers=4.2 {OPENZFS}:/fsx /home",
    )
    assert changed_tasks(must(storage(lab, victim))) == 0
    assert fstab(lab, victim) == []
    assert [len(mounts(lab, victim, path)) for path in ("/fsx", "/home")] == [1, 1]


# --- what does not heal ---


def test_a_name_that_never_comes(lab: Lab, victim: str) -> None:
    lab.put(victim, SHORT, SETTINGS)
    lab.storage.set_names(victim, known=False)
    refused(lab, victim, LUSTRE, "/fsx")


def test_a_file_system_that_stays_read_only(lab: Lab, victim: str) -> None:
    lab.storage.set(OPENZFS, read_only=True)
    refused(lab, victim, OPENZFS, "/home", "Read-only file system")


def test_what_no_retry_heals_ends_at_once_and_leaves_fstab(lab: Lab, victim: str) -> None:
    lab.put(victim, b"fsx_wait_seconds: 3000\nfsx_openzfs_options: [nfsvers=4.2, xprtsec=tls]\n", SETTINGS)
    refused(lab, victim, OPENZFS, "/home", "an incorrect mount option was specified", "fsx_openzfs_options")
    assert [line.split()[1] for line in fstab(lab, victim)] == ["/fsx"]
    assert mounts(lab, victim, "/home") == []
    assert len(mounts(lab, victim, "/fsx")) == 1


def test_mounting_that_never_works(lab: Lab, victim: str) -> None:
    lab.put(victim, b"fsx_wait_seconds: 4\n", SETTINGS)
    lab.storage.set(LUSTRE, fail_mounts=1000)
    refused(lab, victim, LUSTRE, "/fsx", "Is the MGS running?", "security group")
    assert [line.split()[1] for line in fstab(lab, victim)] == ["/home"]


def test_a_server_that_hangs(lab: Lab, victim: str) -> None:
    must(storage(lab, victim))
    lab.put(victim, SHORT, SETTINGS)
    with lab.storage.switched(OPENZFS, hang=True):
        refused(lab, victim, OPENZFS, "/home", "2 s")


def test_another_source_is_mounted(lab: Lab, victim: str) -> None:
    bash(lab, victim, "mkdir -p /fsx; mount -t tmpfs somebody-elses /fsx; touch /fsx/theirs")
    refused(lab, victim, f"{LUSTRE}@tcp:/1abcdefg", "somebody-elses", "/fsx")
    assert bash(lab, victim, "ls /fsx").strip() == "theirs"
    assert mounts(lab, victim, "/fsx") == ["somebody-elses"]


def test_a_kernel_without_the_module(lab: Lab, victim: str) -> None:
    lab.storage.set_module(victim, present=False)
    kernel = bash(lab, victim, "uname --kernel-release").strip()
    refused(lab, victim, "lnet", kernel, "/fsx")


def test_slurm_does_not_start_without_its_storage(lab: Lab, victim: str) -> None:
    lab.put(victim, SHORT, SETTINGS)
    lab.storage.set(LUSTRE, read_only=True)
    bash(lab, victim, "systemctl stop slurmd")
    done = apply(lab, victim)
    assert done.returncode == FAILED, done.stdout + done.stderr
    assert "fsx" in last_line(done)
    assert lab.exec(victim, ["systemctl", "is-active", "slurmd"]).stdout.strip() == "inactive"
    concerns = {
        each["name"]: each["status"]
        for each in json.loads(lab.get(victim, "/var/log/provision/report.json"))["concerns"]
    }
    assert "slurm" not in concerns or concerns["slurm"] != "ok", concerns
    lab.storage.heal()
    bash(lab, victim, f"rm {SETTINGS}")
    must(apply(lab, victim))
    assert lab.exec(victim, ["systemctl", "is-active", "slurmd"]).stdout.strip() == "active"


# --- the lab ---


def test_locks_hold_across_nodes(lab: Lab) -> None:
    take = "import fcntl; fcntl.{}(open('/home/lock', 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    for kind in ("lockf", "flock"):
        held = f"import fcntl, time; f = open('/home/lock', 'w'); fcntl.{kind}(f, fcntl.LOCK_EX); time.sleep(60)"
        bash(lab, LOGIN, f'systemd-run --quiet --unit=holder python3 -c "{held}"; sleep 0.5')
        other = lab.exec(COMPUTE, ["python3", "-c", take.format(kind)])
        assert "BlockingIOError" in other.stderr, kind
        bash(lab, LOGIN, "systemctl stop holder")
        bash(lab, COMPUTE, f'python3 -c "{take.format(kind)}"')
    bash(lab, COMPUTE, "rm /home/lock")


def test_a_replaced_node_finds_what_was_there(lab: Lab, upload: Callable[..., Path]) -> None:
    bash(lab, LOGIN, "echo kept >/fsx/kept")
    (result,) = lab.replace(VICTIM, upload_folder=upload())
    assert result.exit_code == 0, result.summary
    assert bash(lab, VICTIM, "cat /fsx/kept; ls ~ubuntu/where").split() == ["kept", "/home/ubuntu/where"]


SCENARIOS = ("none", "lustre", "openzfs", "both", "group_path", "already_mounted", "other_source")


@pytest.fixture(scope="module")
def molecule(lab: Lab, upload: Callable[..., Path]) -> Iterator[dict[str, Future[subprocess.CompletedProcess[str]]]]:
    """Every scenario, begun on some node; three nodes work at once."""
    folder = upload(Release.TRIXIE, MOLECULE)
    free: SimpleQueue[str] = SimpleQueue()
    for node in NODES[:3]:
        install_molecule(lab, node, folder)
        free.put(node)

    def run(scenario: str) -> subprocess.CompletedProcess[str]:
        node = free.get()
        try:
            return run_molecule(lab, node, f"storage_{scenario}")
        finally:
            free.put(node)

    with ThreadPoolExecutor(max_workers=3) as pool:
        yield {scenario: pool.submit(run, scenario) for scenario in SCENARIOS}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_molecule(scenario: str, molecule: dict[str, Future[subprocess.CompletedProcess[str]]]) -> None:
    done = molecule[scenario].result()
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]


def test_down_leaves_nothing(lab: Lab) -> None:
    lab.down()
    assert not lab.state.exists()
    assert lab.name not in "".join(
        line for line in Path("/proc/self/mountinfo").read_text().splitlines() if "/hyperpod-lab/" in line
    )
