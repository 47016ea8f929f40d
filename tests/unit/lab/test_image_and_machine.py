# SPDX-License-Identifier: Apache-2.0
"""The node image's recipe, the machine's own apt configuration, and how podman is called."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from hyperpod_lab import image, machine
from hyperpod_lab.agent import Node
from hyperpod_lab.errors import LabError, LabUsageError
from hyperpod_lab.lab import Lab
from hyperpod_lab.nodes import Nodes
from hyperpod_lab.podman import Podman

TARGETS = """\
http://mirror.example/debian/|Debian|Debian
http://mirror.example/debian/|Debian|Debian
http://mirror.example/debian-security/|Debian|Debian-Security
http://other.example/tools/|Other|Debian
http://docker.example/|Docker|Docker CE
"""


def test_sources_are_the_machines_own() -> None:
    assert image.sources(TARGETS, "trixie", None) == [
        "deb http://mirror.example/debian/ trixie main",
        "deb http://mirror.example/debian/ trixie-updates main",
        "deb http://mirror.example/debian-security/ trixie-security main",
    ]


def test_a_machine_that_is_no_debian_leaves_the_archive_to_mmdebstrap() -> None:
    assert image.sources("http://mirror.example/ubuntu/|Ubuntu|Ubuntu\n", "bookworm", None) == []


def test_a_mirror_that_is_given_is_the_only_one() -> None:
    lines = image.sources(TARGETS, "trixie", "http://given.example/debian")
    assert [line.split()[1] for line in lines] == ["http://given.example/debian"] * 2


def test_packages_of_a_release() -> None:
    text = "# comment\nmunge\nsackd trixie  # newer\n\nslurmd\n"
    assert image.packages(text, "trixie") == ["munge", "sackd", "slurmd"]
    assert image.packages(text, "bookworm") == ["munge", "slurmd"]


def test_a_bare_image_has_no_venv() -> None:
    names = image.packages((image.RECIPE / "packages.txt").read_text(), "trixie")
    assert "slurmctld" in names
    assert not [name for name in names if "venv" in name or "pip" in name]


def test_the_image_is_another_after_any_change(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("one")
    first = image.recipe_hash([tmp_path], "trixie", "source")
    assert image.recipe_hash([tmp_path], "trixie", "source") == first
    assert image.recipe_hash([tmp_path], "bookworm", "source") != first
    (tmp_path / "file").write_text("two")
    assert image.recipe_hash([tmp_path], "trixie", "source") != first


def test_crun_is_left_alone_only_where_it_works() -> None:
    v2 = machine.containers_conf(unified=True, open_files=20000, processes=32768)
    v1 = machine.containers_conf(unified=False, open_files=20000, processes=32768)
    assert '"nofile=20000:20000", "nproc=32768:32768"' in v1
    assert 'runtime = "runc"' in v1
    assert 'cgroup_manager = "cgroupfs"' in v1
    assert v1.startswith(v2)
    assert "runtime" not in v2


def test_one_error_names_all_that_the_machine_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(machine.shutil, "which", lambda command: None)
    monkeypatch.setattr(machine, "DEVICES", {"ami": {"/dev/no-such-device": "stand-ins"}})
    monkeypatch.setattr(machine, "NEEDED_MEMORY", 2**60)
    with pytest.raises(LabError) as caught:
        machine.prepare(tmp_path, "ami")
    text = str(caught.value)
    assert "- root" in text
    assert "- /dev/no-such-device: stand-ins need it" in text
    assert "- memory: " in text
    assert "- apt-get, to install podman, mmdebstrap, iproute2, iptables" in text


APT_GET = """\
#!/bin/sh
cd ${0%/*}
if [ -e other ]; then # somebody else's, until the second look
    echo >>looks
    [ $(wc -l <looks) -lt 2 ] || rm other
    echo "E: Could not get lock /var/lib/apt/lists/lock" >&2
    exit 100
fi
mkdir held 2>/dev/null || { echo "E: Could not get lock /var/lib/apt/lists/lock" >&2; exit 100; }
echo "$@" >>asked; sleep 0.3
case "$*" in *" install "*) ln -s /bin/true needed-by-the-lab;; esac
rmdir held
"""


@pytest.mark.once
def test_first_labs_at_the_same_moment_and_a_machine_that_updates_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "apt-get").write_text(APT_GET)
    (tmp_path / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(machine, "COMMANDS", {"needed-by-the-lab": "a-package"})
    monkeypatch.setattr(machine, "lacks", lambda *words: [])
    monkeypatch.setattr(machine, "cgroup_v2", lambda: True)
    monkeypatch.setattr(machine, "write_containers_conf", lambda path: None)
    (tmp_path / "other").touch()
    with ThreadPoolExecutor() as pool:
        installed = list(pool.map(machine.prepare, [tmp_path / "state"] * 3))
    assert sorted(map(len, installed))[:2] == [0, 0]
    assert "a-package" in max(installed, key=len)
    assert (tmp_path / "asked").read_text().count(" install ") == 1


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Podman:
    """A podman that says what it got, or fails as it is told."""
    program = tmp_path / "podman"
    program.write_text(
        "#!/bin/sh\n"
        "case $1 in\n"
        f'run|rm) echo "$@" >>{tmp_path}/calls;;\n'
        'conf) echo "$CONTAINERS_CONF";;\n'
        "in) cat;;\n"
        "image) exit $3;;\n"
        "slow) exec sleep 20;;\n"
        'bad) echo "Error: no such container" >&2; exit 125;;\n'
        "esac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return Podman(tmp_path / "containers.conf")


def test_containers_are_removed_at_once_by_any_podman(podman: Podman, tmp_path: Path) -> None:
    """`podman rm` of 3.4, in Ubuntu 22.04, has no `--time`."""
    nodes = Nodes("demo", podman, print)
    node = Node("n-1", "n", "ml.t3.medium", "i-1", IPv4Address("10.0.0.1"), "demo-n-1", running=True)
    nodes.create(node, "image", [], [])
    nodes.remove([node])
    created, removed = (tmp_path / "calls").read_text().splitlines()
    assert created.startswith("run ")
    assert "--stop-timeout=0" in created.split()
    assert removed == "rm --force --ignore demo-n-1"


def test_podman_gets_the_labs_configuration_and_its_input(podman: Podman, tmp_path: Path) -> None:
    assert podman.text("conf").strip() == str(tmp_path / "containers.conf")
    assert podman.run("in", data=b"bytes").stdout == b"bytes"
    assert podman.run("in").stdout == b""


def test_podmans_own_words_are_in_the_error(podman: Podman) -> None:
    with pytest.raises(LabError, match="podman bad failed: Error: no such container"):
        podman.run("bad")
    assert podman.run("bad", check=False).returncode == 125


def test_a_podman_that_does_not_work_is_no_absent_image(podman: Podman) -> None:
    assert podman.exists("image", "0")
    assert not podman.exists("image", "1")
    with pytest.raises(LabError, match="podman does not work on this machine"):
        podman.exists("image", "125")


def test_a_podman_that_hangs_is_ended(podman: Podman) -> None:
    with pytest.raises(LabError, match=r"podman slow took longer than 0\.2 s"):
        podman.run("slow", timeout=0.2)


def test_no_podman_is_told_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LabError, match="podman is not installed"):
        Podman(tmp_path / "containers.conf").run("ps")


@pytest.mark.parametrize("name", ["", "Upper", "a/b", "-a", "a" * 32, "a b"])
def test_a_name_that_podman_or_a_path_would_not_take_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(LabUsageError):
        Lab(name, state_root=tmp_path)


def test_a_machine_without_podman_has_no_lab_to_remove(tmp_path: Path) -> None:
    lab = Lab("never", state_root=tmp_path)
    assert lab.nodes() == []
    assert lab.down() == []
    with pytest.raises(LabUsageError, match="is not up"):
        lab.scale("compute-nodes", 2)
