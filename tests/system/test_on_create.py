# SPDX-License-Identifier: Apache-2.0
"""on_create.sh, run as root in a throwaway copy of this machine, with a stand-in for the command it installs."""

from __future__ import annotations

import base64
import ensurepip
import hashlib
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine import Machine, copy_of_this_machine, lines_with
from polling import wait_for

from hyperpod_lifecycle.environment import KEPT_ENVIRONMENT
from hyperpod_lifecycle.errors import ExitCode

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "runner/hyperpod_lifecycle"
NO_GRACE = "HYPERPOD_LOG_GRACE=0"
UPLOAD = Path("/tmp/sagemaker-lifecycle-x/src")  # in the copy of the machine
LOG = "/var/log/provision/provisioning.log"
PREFIX = "/opt/hyperpod-lifecycle"
SETTINGS = "/etc/hyperpod-lifecycle"
PLATFORM = "/opt/ml/config"
LOCK = "/run/hyperpod-lifecycle/lock"
LIMIT = 600  # seconds, for what would never end
THIS_PYTHON = "{}.{}".format(*sys.version_info)
PARAMETERS = "provisioning_parameters.json"

# Takes what it should do from its last argument.
STAND_IN = """
import os, signal, subprocess, sys, time
from pathlib import Path
from hyperpod_lifecycle import lock

def main():
    print("apply", sys.argv[1:], flush=True)
    if sys.argv[1] == "apply":
        with lock.hold(Path("/run/hyperpod-lifecycle/lock"), "hyperpod-lifecycle apply", 0, print):
            work()

def work():
    deed, _, value = sys.argv[-1].partition("=")
    if deed == "exit":
        print("a line without end", end="")
        sys.exit(int(value))
    if deed == "environment":
        print(sorted(os.environ), os.getcwd(), oct(os.umask(0)), os.readlink("/proc/self/fd/0"))
    if deed == "wait":
        def stop(number, frame):
            print("stopped by", signal.Signals(number).name, flush=True)
            sys.exit(130)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        print("ready", flush=True)
        while True:
            time.sleep(1)
    if deed == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if deed == "leave":
        subprocess.Popen(["sleep", "3600"])
"""


def write_wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> None:
    info = f"{name}-{version}.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [f"{info}/RECORD,,"]
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            record.append(f"{path},sha256={digest},{len(text.encode())}")
            archive.writestr(zipfile.ZipInfo(path), text)
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), "\n".join(record) + "\n")


def stand_in_files(version: str) -> dict[str, str]:
    return {
        "hyperpod_lifecycle/__init__.py": f'__version__ = "{version}"\n',
        "hyperpod_lifecycle/cli.py": STAND_IN,
        **{f"hyperpod_lifecycle/{name}": (PACKAGE / name).read_text() for name in ("lock.py", "errors.py")},
        f"hyperpod_lifecycle-{version}.dist-info/entry_points.txt": "[console_scripts]\n"
        "hyperpod-lifecycle = hyperpod_lifecycle.cli:main\n",
    }


def pip_wheel() -> Path:
    folders = [
        Path(ensurepip.__file__).with_name("_bundled"),
        Path(sysconfig.get_config_var("WHEEL_PKG_DIR") or "/usr/share/python-wheels"),
    ]
    return next(wheel for folder in folders for wheel in folder.glob("pip-*.whl"))


class Node(Machine):
    """A node of HyperPod before its first run: the script uploaded, the platform's files written."""

    upload: Path

    def prepare(self) -> None:
        for folder in (PREFIX, SETTINGS, str(Path(LOCK).parent), "/var/log/provision", PLATFORM, str(UPLOAD.parent)):
            shutil.rmtree(self.path(folder), ignore_errors=True)
        self.upload = self.path(UPLOAD)
        self.upload.mkdir(parents=True)
        shutil.copy2(ROOT / "on_create.sh", self.upload)
        (self.upload / "inventory/group_vars").mkdir(parents=True)
        (self.upload / "inventory/group_vars/all.yml").write_text("a: 1\n")
        self.path(PLATFORM).mkdir(parents=True)
        self.path(f"{PLATFORM}/resource_config.json").write_text("{}")
        # on_create.sh is to find the Python that runs this test.
        self.program("python3", Path(sys.executable).resolve())
        self.use_wheels("1.0")

    def program(self, name: str, what: Path | str) -> None:
        """Put a program first on the path: a link to one that exists, or a shell script."""
        place = self.path("/usr/local/sbin") / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        if isinstance(what, Path):
            place.symlink_to(what)
        else:
            place.write_text(f"#!/bin/sh\n{what}\n")
            place.chmod(0o755)

    def use_wheels(self, version: str) -> None:
        shutil.rmtree(self.upload / "wheels", ignore_errors=True)
        (self.upload / "wheels").mkdir()
        shutil.copy2(pip_wheel(), self.upload / "wheels")
        write_wheel(self.upload / "wheels", "hyperpod_lifecycle", version, stand_in_files(version))

    def use_source(self) -> None:
        """The package as source, with a build backend of its own so that building asks for nothing."""
        shutil.rmtree(self.upload / "wheels")
        write_wheel(self.upload, "hyperpod_lifecycle", "1.0", stand_in_files("1.0"))
        runner = self.upload / "runner/hyperpod_lifecycle"
        runner.mkdir(parents=True)
        (runner / "__init__.py").write_text('__version__ = "1.0"\n')
        (self.upload / "backend.py").write_text(
            "import glob, shutil\n"
            "def build_wheel(folder, *ignored):\n"
            "    return shutil.copy(glob.glob('hyperpod_lifecycle-*.whl')[0], folder).rpartition('/')[2]\n"
        )
        (self.upload / "pyproject.toml").write_text(
            '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
            '[project]\nname = "hyperpod-lifecycle"\nversion = "1.0"\n'
        )
        self.path("/etc/pip.conf").write_text("[global]\nno-index = true\nfind-links = /srv/index\n")
        self.path("/srv/index").mkdir()

    def on_create(self, *arguments: str, variables: tuple[str, ...] = ()) -> list[str | Path]:
        """As HyperPod calls it: from its folder, without HOME, PATH, LANG or a terminal."""
        return ["env", f"--chdir={UPLOAD}", "-i", NO_GRACE, *variables, UPLOAD / "on_create.sh", *arguments]

    def create(self, *arguments: str, variables: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        return self.run(*self.on_create(*arguments, variables=variables))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(self.command(*self.on_create(*arguments)), stdout=subprocess.PIPE, text=True)

    @property
    def log(self) -> str:
        path = self.path(LOG)
        return path.read_text() if path.exists() else ""

    def environments(self) -> set[str]:
        return {path.name.partition("-")[0] for path in self.path(PREFIX).glob("*-*")}

    def current(self) -> str:
        return self.path(f"{PREFIX}/current").readlink().name.partition("-")[0]

    def signal_on_create(self, number: signal.Signals) -> None:
        assert self.run("pkill", f"-{number.name}", "--oldest", "--full", f"{UPLOAD}/on_create.sh").returncode == 0


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setenv(*NO_GRACE.split("="))
    with copy_of_this_machine(tmp_path) as machine:
        node = Node(machine.pid)
        node.prepare()
        yield node


def test_ends_with_the_status_and_the_last_line_of_apply(node: Node) -> None:
    done = node.create("--tags", "slurm", "exit=7")
    assert done.returncode == 7
    assert done.stdout.splitlines()[-2:] == [
        f"apply ['apply', '--resource-config', '{PLATFORM}/resource_config.json', '--tags', 'slurm', 'exit=7']",
        "a line without end",
    ]
    assert re.match(r"===== on_create.sh, run 1 in this log, \d{4}-\d\d-\d\dT", done.stdout)
    assert node.log == done.stdout
    assert node.path(LOG).stat().st_mode & 0o777 == 0o640
    assert node.path(LOG).parent.stat().st_mode & 0o777 == 0o755
    assert node.create().stdout.startswith("===== on_create.sh, run 2 in this log, ")


def test_a_failure_stays_for_a_while_for_the_shipper_of_logs_if_the_platform_started_it(node: Node) -> None:
    hour = "HYPERPOD_LOG_GRACE=3600"
    done = node.run("sh", "-c", f"cp -r {UPLOAD} /root/src; {hour} /root/src/on_create.sh exit=7")
    assert done.returncode == 7, "by hand, from a folder elsewhere"
    command = node.command(*node.on_create("exit=7", variables=(hour,)))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        wait_for(lambda: lines_with("sleep 3600", node.processes()))
        assert node.log.endswith("a line without end")
        assert node.create().returncode == 0, "it holds no lock"
        node.signal_on_create(signal.SIGTERM)
        assert process.wait(60) == 7
    assert node.create(variables=(hour,)).returncode == 0


def test_apply_depends_on_nothing_of_the_caller(node: Node) -> None:
    done = node.run(
        "sh",
        "-c",
        f"umask 0177; export PATH= PYTHONHOME=/nowhere PYTHONPATH=/nowhere; exec {UPLOAD}/on_create.sh environment <&-",
    )
    assert done.returncode == 0
    assert re.search(r"^\['HOME', 'LANG',( 'LC_CTYPE',)? 'PATH'\] / 0o22 /dev/null$", done.stdout, re.M)


def test_proxies_reach_apply(node: Node) -> None:
    given = {name: f"value-of-{name}" for name in KEPT_ENVIRONMENT}
    variables = (*(f"{name}={value}" for name, value in given.items()), "OTHER=secret", "BASH_FUNC_f%%=() { :; }")
    done = node.create("environment", variables=variables)
    assert done.returncode == 0
    (line,) = lines_with("'HOME', ", done.stdout.splitlines())
    names = set(re.findall(r"'([^']+)'", line.partition("]")[0])) - {"LC_CTYPE"}
    assert names == {"HOME", "LANG", "PATH", *KEPT_ENVIRONMENT}


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_closed_descriptors_do_not_matter(node: Node, closed: str) -> None:
    done = node.run("sh", "-c", f"exec {UPLOAD}/on_create.sh exit=7 {closed}")
    assert done.returncode == 7
    assert node.log.endswith("a line without end")


def test_the_log_is_whole_when_nobody_reads_standard_output_any_more(node: Node) -> None:
    done = node.run("bash", "-c", f"{UPLOAD}/on_create.sh exit=7 | head -n 1; exit ${{PIPESTATUS[0]}}")
    assert done.returncode == 7
    assert node.log.endswith("a line without end")


def test_neither_variable_nor_file_is_a_vanilla_cluster(node: Node) -> None:
    node.path(f"{PLATFORM}/resource_config.json").unlink()
    done = node.create()
    assert done.returncode == 0
    assert "vanilla cluster" in done.stdout.splitlines()[-1]
    assert node.log == done.stdout
    assert not node.path(PREFIX).exists()


def test_a_named_file_that_is_absent_fails(node: Node) -> None:
    done = node.create(variables=("SAGEMAKER_RESOURCE_CONFIG_PATH=/nowhere/rc.json",))
    assert done.returncode == 1
    assert "/nowhere/rc.json" in done.stdout.splitlines()[-1]
    assert not node.path(PREFIX).exists()


def test_a_named_file_is_used(node: Node) -> None:
    (node.upload / "mine.json").write_text("{}")
    done = node.create(variables=("SAGEMAKER_RESOURCE_CONFIG_PATH=mine.json",))
    assert f"'--resource-config', '{UPLOAD}/mine.json'" in done.stdout


def test_only_root(node: Node) -> None:
    node.path(UPLOAD.parent).chmod(0o755)
    done = node.run("setpriv", "--reuid=65534", "--clear-groups", UPLOAD / "on_create.sh")
    assert done.returncode == 1
    assert "must run as root" in done.stdout.splitlines()[-1]


def test_without_a_log_it_says_so_and_runs(node: Node) -> None:
    node.path("/var/log/provision").write_text("in the way")
    done = node.create("exit=7")
    assert done.returncode == 7
    assert f"no log at {LOG}" in done.stdout.splitlines()[1]


def test_the_second_run_starts_at_once_without_network_or_pip(node: Node) -> None:
    started = time.monotonic()
    first = node.create()
    between = time.monotonic()
    shutil.move(node.upload / "wheels", node.upload / "moved")  # the same bytes, written anew
    shutil.copytree(node.upload / "moved", node.upload / "wheels", copy_function=shutil.copyfile)
    copied = time.monotonic()
    second = node.run("unshare", "--net", *node.on_create())
    ended = time.monotonic()
    print(f"on_create.sh with a stand-in: first {between - started:.2f} s, second {ended - copied:.2f} s")
    assert (first.returncode, second.returncode) == (0, 0)
    assert "installing" in first.stdout
    assert [line.partition(" ")[0] for line in second.stdout.splitlines()] == ["=====", "apply"]
    assert node.log == first.stdout + second.stdout


def test_keeps_the_version_before_and_no_older(node: Node) -> None:
    for version in ("1.0", "1.1", "1.2"):
        node.use_wheels(version)
        assert node.create().returncode == 0
    assert node.environments() == {"1.1", "1.2"}
    assert node.current() == "1.2"
    node.use_wheels("1.1")
    assert "installing" not in node.create().stdout
    assert node.current() == "1.1"


def test_the_command_stays_when_the_folder_vanishes(node: Node) -> None:
    process = node.start("wait")
    wait_for(lambda: "ready" in node.log, "apply")
    shutil.rmtree(node.upload.parent)
    node.signal_on_create(signal.SIGTERM)
    assert process.wait(timeout=LIMIT) == 130
    assert node.run("/usr/local/bin/hyperpod-lifecycle", "plan").stdout == "apply ['plan']\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_apply_and_leaves_no_child(node: Node, number: signal.Signals) -> None:
    process = node.start("wait")
    wait_for(lambda: "ready" in node.log, "apply")
    node.signal_on_create(number)
    output, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    assert output.splitlines()[-1] == f"stopped by {number.name}"
    assert node.log == output
    assert node.processes() == []


def test_a_signal_while_installing_leaves_no_child(node: Node) -> None:
    process = node.start()
    wait_for(lambda: lines_with("pip", node.processes()), "pip")
    node.signal_on_create(signal.SIGTERM)
    output, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    assert "stopped by SIGTERM" in output.splitlines()[-1]
    assert node.processes() == []
    assert node.create("exit=7").returncode == 7


def test_an_installation_that_was_killed_is_not_used(node: Node) -> None:
    process = node.start()
    wait_for(lambda: list(node.path(PREFIX).glob("*/lib/python3*/site-packages/hyperpod_lifecycle")), "files of ours")
    node.run("sh", "-c", "kill -9 -1")
    process.communicate(timeout=LIMIT)
    assert not node.path("/usr/local/bin/hyperpod-lifecycle").exists()
    done = node.create("exit=7")
    assert done.returncode == 7
    assert "installing" in done.stdout


def test_two_at_once_install_once_and_wait_once(node: Node) -> None:
    first = node.start("wait")
    wait_for(lambda: "ready" in node.log, "apply")
    second = node.start("exit=7")
    wait_for(lambda: "waiting up to" in node.log, "the second one")
    node.signal_on_create(signal.SIGTERM)
    outputs = [process.communicate(timeout=LIMIT)[0] for process in (first, second)]
    assert [first.returncode, second.returncode] == [130, 7]
    assert len(lines_with("installing", outputs)) == 1
    (said,) = lines_with("waiting", outputs[1].splitlines())
    assert re.search(r"waiting up to 900 s for another run: pid \d+ since 20.*, hyperpod-lifecycle apply$", said)


def held(node: Node) -> subprocess.Popen[str]:
    """A run by hand, with the lock and without anything else."""
    node.path(LOCK).parent.mkdir(mode=0o700)
    process = subprocess.Popen(
        node.command("flock", LOCK, "sh", "-c", "echo held; read until_its_input_ends"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    return process


def test_settings_do_not_change_under_a_run(node: Node) -> None:
    node.create()
    shutil.rmtree(node.path(LOCK).parent)
    kept = node.path(f"{SETTINGS}/inventory/group_vars/all.yml")
    (node.upload / "inventory/group_vars/all.yml").write_text("a: 2\n")
    (node.upload / "shared_users.txt").write_text("ada,2001\n")
    node.use_wheels("1.1")
    run = held(node)
    process = node.start("exit=7")
    wait_for(lambda: "waiting up to" in node.log, "the lock")
    assert (kept.read_text(), node.path(f"{SETTINGS}/shared_users.txt").exists()) == ("a: 1\n", False)
    assert (node.current(), node.environments()) == ("1.0", {"1.0"})
    run.communicate()
    process.communicate(timeout=LIMIT)
    assert process.returncode == 7
    assert (kept.read_text(), node.path(f"{SETTINGS}/shared_users.txt").exists()) == ("a: 2\n", True)


def test_a_node_that_stays_held_is_an_error_of_its_own(node: Node) -> None:
    run = held(node)
    done = node.create("--lock-wait", "0.2")
    assert done.returncode == ExitCode.LOCKED
    assert "waiting up to 0.2 s for another run" in done.stdout
    assert "another run holds this node: a run that is just starting; wait" in done.stdout.splitlines()[-1]
    run.communicate()


def test_who_kills_on_create_leaves_the_lock_to_apply_and_to_nobody_after_it(node: Node) -> None:
    process = node.start("wait")
    wait_for(lambda: "ready" in node.log, "apply")
    node.signal_on_create(signal.SIGKILL)
    process.wait(timeout=LIMIT)
    assert node.run("flock", "--nonblock", LOCK, "true").returncode == 1, "apply goes on"
    assert node.run("pkill", "-KILL", "--full", "hyperpod-lifecycle apply").returncode == 0
    assert node.run("flock", "--wait", "60", LOCK, "true").returncode == 0


def test_a_process_left_behind_does_not_hold_it_up(node: Node) -> None:
    done = node.create("leave")
    assert done.returncode == 0
    assert re.search(r"left behind by the run.*: process \d+ \(sleep 3600", done.stdout.splitlines()[-1])
    assert node.log == done.stdout
    assert node.run("flock", "--nonblock", LOCK, "true").returncode == 0, "it does not hold the node"


def test_the_logs_writer_may_be_late(node: Node) -> None:
    process = node.start("wait")
    wait_for(lambda: "ready" in node.log, "apply")
    assert node.run("pkill", "-STOP", "--exact", "tee").returncode == 0
    # Time as on_create.sh measures it: after what it takes for ten seconds, tee goes on.
    node.program(
        "sleep", "echo $1 >>/srv/slept; awk '{ s += $1 } END { exit s < 10 }' /srv/slept && pkill -CONT tee; :"
    )
    node.signal_on_create(signal.SIGTERM)
    output, _ = process.communicate(timeout=LIMIT)
    assert node.path("/srv/slept").exists()
    assert output.splitlines()[-1] == "stopped by SIGTERM"
    assert node.log == output


def test_apply_that_was_killed_is_said_and_fails(node: Node) -> None:
    done = node.create("die")
    assert done.returncode == 128 + signal.SIGKILL
    assert "hyperpod-lifecycle was killed by SIGKILL" in done.stdout.splitlines()[-1]
    assert len(done.stdout.splitlines()) == 4


def without_ensurepip(node: Node) -> Path:
    """Where the module was moved to, as seen in the copy."""
    home = Path(ensurepip.__file__).parent
    shutil.rmtree(node.path(home.with_name("venv")))
    away = home.with_name("ensurepip.away")
    shutil.move(node.path(home), node.path(away))
    return away


def test_neither_venv_nor_ensurepip_is_needed(node: Node) -> None:
    without_ensurepip(node)
    assert node.create("exit=7").returncode == 7


def test_from_source_it_waits_for_the_package_index(node: Node) -> None:
    node.use_source()
    process = node.start("exit=7")
    wait_for(lambda: "waiting up to" in node.log, "the wait")
    write_wheel(node.path("/srv/index"), "ansible_runner", "1.0", {})
    output, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 7, output
    (node.upload / PARAMETERS).write_text("{}")
    assert "installing" not in node.create().stdout
    (node.upload / "shared_users.txt").write_text("")
    assert "installing" not in node.create().stdout
    (node.upload / "runner/data.json").write_text("{}")
    assert "installing" in node.create().stdout


def test_from_source_without_ensurepip_it_waits_for_the_package_lock(node: Node) -> None:
    node.use_source()
    write_wheel(node.path("/srv/index"), "ansible_runner", "1.0", {})
    away = without_ensurepip(node)
    node.program("apt-get", f"[ -e /srv/free ] || exit 100; [ ! -e {away} ] || mv {away} {away.with_suffix('')}")
    process = node.start("exit=7")
    wait_for(lambda: "waiting up to" in node.log, "the wait")
    node.path("/srv/free").touch()
    output, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 7, output


def test_wheels_that_do_not_fit_are_named(node: Node) -> None:
    own = next((node.upload / "wheels").glob("hyperpod_lifecycle-*"))
    own.rename(own.with_name("hyperpod_lifecycle-1.0-cp27-none-any.whl"))
    done = node.create()
    assert done.returncode == 1
    assert f"no bundled wheels match Python {THIS_PYTHON} on " in done.stdout.splitlines()[-1]
    assert "(pip has none for hyperpod-lifecycle==1.0)" in done.stdout.splitlines()[-1]


def test_a_full_disk_is_not_taken_for_wheels_that_do_not_fit(node: Node) -> None:
    files = stand_in_files("1.0") | {"hyperpod_lifecycle/large": "0" * 3_000_000}
    write_wheel(node.upload / "wheels", "hyperpod_lifecycle", "1.0", files)
    node.path(PREFIX).mkdir()
    assert node.run("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", PREFIX).returncode == 0
    done = node.create()
    assert done.returncode == 1
    assert f"no space left in {PREFIX}" in done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("deed", "said"),
    [
        ("kill -KILL $$", "killed by SIGKILL"),
        ("echo MemoryError; exit 2", "too little memory"),
        ("echo 'Wheel is invalid'; exit 1", "see its own lines above"),
    ],
)
def test_how_pip_failed_is_told(node: Node, deed: str, said: str) -> None:
    (wheel,) = (node.upload / "wheels").glob("pip-*.whl")
    wheel.unlink()
    wheel.mkdir()
    (wheel / "pip").mkdir()
    (wheel / "pip/__main__.py").write_text(f"import os; os.execl('/bin/sh', 'sh', '-c', {deed!r})")
    done = node.create()
    assert done.returncode == 1
    last = done.stdout.splitlines()[-1]
    assert f"pip could not install hyperpod-lifecycle from {UPLOAD}/wheels: {said}" in last


def test_a_newer_python_is_found_beside_an_old_one(node: Node) -> None:
    node.program("python3", 'echo "3.8 /usr/bin/python3.8"; exit 1')
    node.program("python3.12", Path(sys.executable).resolve())
    assert node.create("exit=7").returncode == 7


def test_without_a_python_it_names_what_it_found(node: Node) -> None:
    for name in ("python3", "python3.10", "python3.11", "python3.12", "python3.13"):
        node.program(name, 'echo "3.8 /usr/bin/python3.8"; exit 1')
    done = node.create()
    assert done.returncode == 1
    assert "python3: 3.8 /usr/bin/python3.8" in done.stdout.splitlines()[-1]


def test_uploaded_parameters_serve_where_the_platform_wrote_none(node: Node) -> None:
    (node.upload / PARAMETERS).write_text("{}")
    assert f"'--provisioning-parameters', '{UPLOAD}/{PARAMETERS}'" in node.create().stdout


def test_the_platforms_parameters_win_and_a_difference_is_said(node: Node) -> None:
    node.path(f"{PLATFORM}/{PARAMETERS}").write_text("{}")
    (node.upload / PARAMETERS).write_text("{}")
    same = node.create().stdout
    (node.upload / PARAMETERS).write_text('{"version": "1.0.0"}')
    different = node.create().stdout
    assert "--provisioning-parameters" not in same + different
    assert "differs" not in same
    assert lines_with(f"{PLATFORM}/{PARAMETERS} is used", different.splitlines())


def test_the_inventory_is_kept_for_root_only(node: Node) -> None:
    node.create()
    kept = node.path(f"{SETTINGS}/inventory/group_vars/all.yml")
    assert kept.read_text() == "a: 1\n"
    assert [path.stat().st_mode & 0o777 for path in (kept, kept.parent, kept.parents[1], kept.parents[2])] == [
        *(0o600, 0o700, 0o700, 0o700)
    ]


def test_an_inventory_that_differs_is_kept_as_previous(node: Node) -> None:
    previous = node.path(f"{SETTINGS}/inventory.previous/group_vars/all.yml")
    kept = node.path(f"{SETTINGS}/inventory/group_vars/all.yml")
    node.create()
    assert "inventory" not in node.create().stdout
    assert not previous.exists()
    kept.write_text("a: 2  # changed on the node\n")
    assert "the uploaded inventory differs" in node.create().stdout
    assert (kept.read_text(), previous.read_text()) == ("a: 1\n", "a: 2  # changed on the node\n")
    (node.upload / "inventory/group_vars/all.yml").write_text("a: 3\n")
    node.create()
    assert (kept.read_text(), previous.read_text()) == ("a: 3\n", "a: 1\n")
    assert len(list(node.path(SETTINGS).iterdir())) == 4, "two links and what they point to"


def test_an_inventory_folder_of_someone_else_is_kept_too(node: Node) -> None:
    node.path(f"{SETTINGS}/inventory").mkdir(parents=True)
    node.path(f"{SETTINGS}/inventory/mine.yml").write_text("b: 1\n")
    assert node.create().returncode == 0
    assert node.path(f"{SETTINGS}/inventory.previous/mine.yml").read_text() == "b: 1\n"
    assert node.path(f"{SETTINGS}/inventory/group_vars/all.yml").exists()


def test_the_list_of_users_is_kept_for_root_only_and_the_newest_upload_counts(node: Node) -> None:
    def kept() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in node.path(SETTINGS).glob("*shared_users*")}

    assert node.create().returncode == 0
    assert kept() == {}
    (node.upload / "shared_users.txt").write_bytes(b"ada,2001\r\n")
    (node.upload / "shared_users.txt").chmod(0o644)
    node.create()
    assert kept() == {"shared_users.txt": b"ada,2001\r\n"}
    assert node.path(f"{SETTINGS}/shared_users.txt").stat().st_mode & 0o777 == 0o600
    (node.upload / "shared_users.txt").rename(node.upload / "shared_users.yaml")
    assert "installing" not in node.create().stdout
    assert kept() == {"shared_users.yaml": b"ada,2001\r\n"}, "one that was uploaded before would win"
    (node.upload / "shared_users.yaml").unlink()
    node.create()
    assert kept() == {"shared_users.yaml": b"ada,2001\r\n"}, "an upload without users says nothing about them"
