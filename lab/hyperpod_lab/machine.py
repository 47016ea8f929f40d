# SPDX-License-Identifier: Apache-2.0
"""What this machine can do, what it lacks, and the packages the lab needs on it."""

from __future__ import annotations

import fcntl
import os
import platform
import resource
import shutil
import subprocess
import time
from pathlib import Path

from hyperpod_lab.errors import LabError

#: command the lab calls -> Debian package that has it
COMMANDS = {"podman": "podman", "mmdebstrap": "mmdebstrap", "ip": "iproute2", "iptables": "iptables"}
#: No command to look for, but podman or mmdebstrap needs them; a release without one of them has its own default.
PACKAGES = ("runc", "netavark", "aardvark-dns", "catatonit")
LOCK_SECONDS = 300
NEEDED_BYTES = 6 * 2**30
NEEDED_MEMORY = 2**30
CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_MKNOD = 21, 12, 27
#: Node image -> devices that its stand-ins need, and for what.
DEVICES = {
    "bare": {"/dev/fuse": "the stand-ins for FSx"},
    "ami": {"/dev/fuse": "the stand-ins for FSx", "/dev/loop-control": "the stand-ins for disks"},
}
AUTOFS = Path("/dev/autofs")
FILE_SYSTEM_TYPES = Path("/proc/filesystems")


def has_autofs() -> bool:
    """Whether systemd can mount on first access here. The environment's NO_AUTOFS pretends that it cannot."""
    known = AUTOFS.exists() and "autofs" in FILE_SYSTEM_TYPES.read_text().split()
    return known and not os.environ.get("NO_AUTOFS")


def cgroup_v2() -> bool:
    return Path("/sys/fs/cgroup/cgroup.controllers").exists()


def containers_conf(*, unified: bool, open_files: int, processes: int) -> str:
    """The lab's containers.conf. On cgroup v1 or a hybrid layout crun does not start, so runc and cgroupfs do."""
    lines = [
        "# SPDX-License-Identifier: Apache-2.0",
        "# Written by `hyperpod-lifecycle lab`; podman reads it only when the lab calls it.",
        "[containers]",
        # Root without CAP_SYS_RESOURCE may not raise limits, as podman's defaults would; the machine's own always work.
        f'default_ulimits = ["nofile={open_files}:{open_files}", "nproc={processes}:{processes}"]',
        "pids_limit = 0",
        "[engine]",
        'events_logger = "file"',
    ]
    if not unified:
        lines += ['runtime = "runc"', 'cgroup_manager = "cgroupfs"']
    return "\n".join(lines) + "\n"


def _limit(kind: int) -> int:
    _, hard = resource.getrlimit(kind)
    return 1048576 if hard == resource.RLIM_INFINITY else hard


def write_containers_conf(path: Path) -> None:
    # podman lowers its own process limit to pid_max first, and a container cannot get more than podman has.
    pid_max = int(Path("/proc/sys/kernel/pid_max").read_text())
    wanted = containers_conf(
        unified=cgroup_v2(),
        open_files=_limit(resource.RLIMIT_NOFILE),
        processes=min(_limit(resource.RLIMIT_NPROC), pid_max),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != wanted:
        path.write_text(wanted)


def _capabilities() -> int:
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), 16)


def missing_packages() -> list[str]:
    """Packages to install for the commands this machine lacks; with one, podman's own helpers too."""
    packages = [package for command, package in COMMANDS.items() if shutil.which(command) is None]
    if not cgroup_v2() and shutil.which("runc") is None:
        packages.append("runc")
    return packages


def lacks(state_root: Path, image: str = "bare") -> list[str]:
    """Everything that keeps the lab from running here, for one message."""
    if platform.system() != "Linux":
        return [f"Linux: this is {platform.system()}; use a Linux virtual machine"]
    found = []
    if platform.machine() not in ("x86_64", "aarch64"):
        found.append(f"a processor that HyperPod has: this is {platform.machine()}, x86_64 or aarch64 is expected")
    for device, purpose in DEVICES[image].items():
        if not Path(device).exists():
            found.append(f"{device}: {purpose} need it; load the kernel's module, or pass the device to this container")
    if os.geteuid() != 0:
        found.append("root: nodes are privileged containers; run it with sudo")
    else:
        names = {CAP_SYS_ADMIN: "SYS_ADMIN", CAP_NET_ADMIN: "NET_ADMIN", CAP_MKNOD: "MKNOD"}
        absent = [name for bit, name in names.items() if not _capabilities() >> bit & 1]
        if absent:
            found.append(f"capabilities {', '.join(absent)}: root here is inside a container that withholds them")
    if not Path("/sys/fs/cgroup").is_dir() or not os.listdir("/sys/fs/cgroup"):  # noqa: PTH208 - a plain emptiness test
        found.append("cgroups: /sys/fs/cgroup is not mounted")
    packages = missing_packages()
    if packages and shutil.which("apt-get") is None:
        found.append(f"apt-get, to install {', '.join(packages)}: use Debian 12, Ubuntu 22.04 or newer")
    parent = next(folder for folder in (state_root, *state_root.parents) if folder.exists())
    free = shutil.disk_usage(parent).free
    if free < NEEDED_BYTES:
        found.append(f"disk: {free / 2**30:.1f} GiB free under {parent}, {NEEDED_BYTES / 2**30:.0f} needed")
    available = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
    memory = int(available.split()[1]) * 1024
    if memory < NEEDED_MEMORY:
        found.append(f"memory: {memory / 2**30:.1f} GiB available, {NEEDED_MEMORY / 2**30:.0f} needed")
    return found


def apt_get(*arguments: str, timeout: float) -> None:
    """Run apt-get. Another that holds its locks is waited for: a machine that has just booted updates itself."""
    deadline = time.monotonic() + timeout
    while True:
        done = subprocess.run(
            ["apt-get", "-qq", "-o", f"DPkg::Lock::Timeout={LOCK_SECONDS}", *arguments],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if done.returncode == 0:
            return
        # That option is for dpkg's lock; `update` does not wait for its own.
        if "Could not get lock" not in done.stderr or time.monotonic() > deadline:
            raise LabError(f"apt-get {arguments[0]} failed: {done.stderr.strip()[-600:]}")
        time.sleep(1)


def _known_to_apt(package: str) -> bool:
    done = subprocess.run(
        ["apt-cache", "show", "--no-all-versions", package], capture_output=True, check=False, timeout=60
    )
    return done.returncode == 0


def prepare(state_root: Path, image: str = "bare") -> list[str]:
    """Install what is missing and return the packages installed; one error names everything the machine lacks."""
    found = lacks(state_root, image)
    if found:
        raise LabError("this machine cannot run the lab. It lacks:\n" + "\n".join(f"- {line}" for line in found))
    state_root.mkdir(parents=True, exist_ok=True)
    with (state_root / "machine.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two first labs one installs, and the other finds it done
        packages = missing_packages()
        if packages:
            apt_get("update", timeout=LOCK_SECONDS)
            packages += [name for name in PACKAGES if name not in packages and _known_to_apt(name)]
            apt_get("install", "--yes", "--no-install-recommends", *packages, timeout=900)
        write_containers_conf(state_root / "containers.conf")
    return packages
