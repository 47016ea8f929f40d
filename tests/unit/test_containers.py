# SPDX-License-Identifier: Apache-2.0
"""Formats and decisions of the role containers; tests/e2e has the real programs."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import (
    apt,
    docker,
    enroot,
    leftovers,
    nvidia,
    proof,
    scratch,
    slurm,
    units,
)
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import pyxis as pyxis_files
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault
from ansible_collections.hyperpod.lifecycle.plugins.modules import (
    docker_current,
    package_install,
    pyxis_build,
    scratch_disk_find,
    slurm_plugstack_include,
    slurmctld_reload,
)
from conftest import ROOT, tasks_of

NVME, VOLUME = "/opt/dlami/nvme", "/opt/sagemaker"
ROOT_DISK = "20 1 259:1 / / rw - ext4 /dev/root rw"
DISK = {
    "nvme": f"30 20 259:2 / {NVME} rw - ext4 /dev/mapper/vg.01-lv_ephemeral rw",
    "volume": f"31 20 259:3 / {VOLUME} rw - xfs /dev/nvme2n1 rw",
    "bound": f"32 20 259:1 /srv {NVME} rw - ext4 /dev/root rw",
    "shared": f"33 20 0:50 / {NVME} rw - lustre 10.0.0.9@tcp:/abc rw",
    "fake shared": f"33 20 0:50 / {NVME} rw - fuse.lustre 10.0.0.9@tcp:/abc rw",
    "memory": f"34 20 0:51 / {NVME} rw - tmpfs tmpfs rw",
    "below": f"35 20 259:2 / {NVME}/x rw - ext4 /dev/nvme1n1 rw",
}


class Ended(Exception):
    """How a module ended."""


class Module:
    """As much of an AnsibleModule as the modules here use."""

    check_mode = False

    def __init__(self, tmpdir: Path, **params: Any) -> None:
        self.params, self.tmpdir = params, str(tmpdir)

    def __call__(self, argument_spec: dict[str, Any], supports_check_mode: bool = False, **_rules: Any) -> Module:
        given = {name: option.get("default") for name, option in argument_spec.items()}
        self.params = {**given, **self.params}
        return self

    def exit_json(self, **result: Any) -> None:
        raise Ended(result)

    def fail_json(self, msg: str, **result: Any) -> None:
        raise Ended({"failed": True, "msg": msg, **result})

    def atomic_move(self, source: str, dest: str) -> None:
        Path(source).replace(dest)


def test_what_users_cannot_read_is_not_included_and_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path, folder = tmp_path / "plugstack.conf", tmp_path / "d"
    folder.mkdir()
    for name, mode in (("half.conf", 0o600), ("sed6Yj8Ga", 0o644), ("pyxis.conf", 0o644)):
        (folder / name).touch()
        (folder / name).chmod(mode)
    (folder / "gone.conf").symlink_to(tmp_path / "nowhere")
    path.write_text("include d/*\n")
    result = ended(monkeypatch, tmp_path, slurm_plugstack_include, path=str(path))
    assert path.read_text() == f"{slurm.MARK}d/*\ninclude {folder}/pyxis.conf\n{slurm.END}\n"
    for name in ("half.conf", "sed6Yj8Ga", "gone.conf"):
        assert f"{folder}/{name}" in result["note"]
    assert "pyxis" not in result["note"]


def ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: Any, **params: Any) -> dict[str, Any]:
    """The result of a module's main()."""
    monkeypatch.setattr(module, "AnsibleModule", Module(tmp_path, **params))
    with pytest.raises(Ended) as found:
        module.main()
    result: dict[str, Any] = found.value.args[0]
    return result


@pytest.mark.parametrize(("there", "answer"), [(name, name in ("nvme",)) for name in DISK if name != "volume"])
def test_only_a_disk_of_this_node_counts(there: str, answer: bool) -> None:
    assert scratch.is_disk(f"{ROOT_DISK}\n{DISK[there]}\n", NVME) is answer
    assert not scratch.is_disk(f"{ROOT_DISK}\n", NVME)


def test_what_is_mounted_on_top_decides() -> None:
    over = DISK["memory"].replace("34 20", "36 30")
    assert not scratch.is_disk(f"{ROOT_DISK}\n{DISK['nvme']}\n{over}\n", NVME)


LOADED = {
    "LoadState": "loaded",
    "ActiveState": "inactive",
    "Result": "success",
    "Job": "",
    "ExecMainExitTimestampMonotonic": "0",
}


@pytest.mark.parametrize(
    ("unit", "state"),
    [
        ({"LoadState": "not-found"}, "absent"),
        ({"LoadState": "masked"}, "absent"),
        ({}, "unknown"),
        ({"LoadState": "bad-setting"}, "failed"),
        ({**LOADED, "ActiveState": "activating"}, "waiting"),
        ({**LOADED, "Job": "217"}, "waiting"),
        ({**LOADED, "ActiveState": "active"}, "done"),
        ({**LOADED, "ExecMainExitTimestampMonotonic": "81234"}, "done"),
        ({**LOADED, "ActiveState": "failed", "Result": "exit-code"}, "failed"),
        (LOADED, "unknown"),
    ],
)
def test_how_far_the_unit_of_the_disk_is(unit: dict[str, str], state: str) -> None:
    assert scratch.state(unit) == state


def choose(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, disks: list[str], states: list[str], wait: int = 60
) -> dict[str, Any]:
    """What scratch_disk says where these are mounted, and the unit is in one state after the other."""
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text("\n".join([ROOT_DISK, *(DISK[name] for name in disks), ""]))
    units_seen = {
        "absent": {"LoadState": "not-found"},
        "waiting": {**LOADED, "ActiveState": "activating"},
        "failed": {**LOADED, "ActiveState": "failed"},
        "done": {**LOADED, "ActiveState": "active"},
        "unknown": LOADED,
    }
    remaining = iter(states)
    last: list[str] = []

    def look(name: str, properties: Any) -> dict[str, str]:
        last[:] = [next(remaining, *last)]
        return units_seen[last[0]]

    monkeypatch.setattr(scratch_disk_find, "MOUNTINFO", mountinfo)
    monkeypatch.setattr(scratch_disk_find, "look", look)
    monkeypatch.setattr(scratch_disk_find, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(
        scratch_disk_find.os,
        "statvfs",
        lambda path: SimpleNamespace(f_flag=0, f_frsize=4096, f_blocks=26214400, f_bavail=20971520),
    )
    params = {"paths": [NVME, VOLUME], "root_path": "/var/lib/x", "unit": "dlami-nvme.service", "wait_seconds": wait}
    return ended(monkeypatch, tmp_path, scratch_disk_find, **params)


@pytest.mark.parametrize(
    ("disks", "states", "path", "notes"),
    [
        (["nvme", "volume"], ["done"], NVME, []),
        (["nvme", "volume"], ["waiting", "waiting", "done"], NVME, []),
        (["nvme"], ["absent"], NVME, []),
        (["volume"], ["absent"], VOLUME, []),
        (["volume"], ["done"], VOLUME, []),
        (["volume"], ["failed"], VOLUME, ["dlami-nvme.service has failed"]),
        (["volume"], ["unknown"], VOLUME, ["has not run"]),
        (["shared", "volume"], ["done"], VOLUME, []),
        ([], ["absent"], "/var/lib/x", []),
        ([], ["done"], "/var/lib/x", []),
        ([], ["failed"], "/var/lib/x", ["has failed", "on the root disk, which has 100 GiB (80 GiB free)"]),
    ],
)
def test_one_disk_for_all_container_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, disks: list[str], states: list[str], path: str, notes: list[str]
) -> None:
    result = choose(monkeypatch, tmp_path, disks, states)
    assert result["folder"] == path
    assert result["root"] is (path not in (NVME, VOLUME))
    assert all(note in result["note"] for note in notes)
    assert bool(result["note"]) == bool(notes)


def test_the_wait_for_the_disk_has_an_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = choose(monkeypatch, tmp_path, ["volume"], ["waiting"], wait=0)
    assert (result["folder"], result["root"]) == (VOLUME, False)
    assert "had not mounted /opt/dlami/nvme after 0 s" in result["note"]


def test_daemon_json_keeps_what_is_there() -> None:
    there = {
        "runtimes": {"nvidia": {"path": "nvidia-container-runtime"}},
        "log-opts": {"max-file": "3"},
        "data-root": "/var/lib/docker",
    }
    settings = {"log-opts": {"max-size": "10m"}}
    wanted = docker.daemon_settings(there, NVME, f"{NVME}/docker/data-root", {"live-restore": True}, settings)
    assert wanted == {
        "runtimes": there["runtimes"],
        "log-opts": {"max-file": "3", "max-size": "10m"},
        "data-root": f"{NVME}/docker/data-root",
        "live-restore": True,
    }
    assert docker.parse(docker.dumped(wanted)) == wanted
    assert docker.daemon_settings(wanted, NVME, f"{NVME}/docker/data-root", {"live-restore": True}, settings) == wanted


@pytest.mark.parametrize(
    ("there", "disk", "root"),
    [
        ({}, NVME, f"{NVME}/d"),
        ({"data-root": f"{NVME}/docker"}, NVME, f"{NVME}/docker"),
        ({"data-root": f"{NVME}-old/docker"}, NVME, f"{NVME}/d"),
        ({"data-root": "/data"}, "", "/data"),
        ({}, "", None),
    ],
)
def test_a_data_root_that_is_good_stays(there: dict[str, str], disk: str, root: str | None) -> None:
    assert docker.daemon_settings(there, disk, f"{disk}/d", {}, {}).get("data-root") == root


def test_what_is_there_comes_before_a_default_and_a_setting_before_both() -> None:
    there = {"live-restore": False}
    assert docker.daemon_settings(there, "", "", {"live-restore": True}, {}) == there
    assert docker.daemon_settings(there, "", "", {}, {"live-restore": True}) == {"live-restore": True}


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_an_empty_daemon_json_has_no_settings(text: str) -> None:
    assert docker.parse(text) == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1}\n{"data-root": "/x"}', "Extra data: line 2"),
        ('{"a": 1,}', "line 1 column"),
        ("[]", "no JSON object"),
        ('{"data-root": "/a", "data-root": "/b"}', "data-root is there twice"),
    ],
)
def test_a_daemon_json_that_docker_could_not_read_is_named(text: str, said: str) -> None:
    with pytest.raises(Fault, match=said):
        docker.parse(text)


CONTAINERD = """\
version = 2
#root = "/var/lib/containerd"
{}
[plugins]
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
    root = "/not/this"
"""


@pytest.mark.parametrize("before", ["root = '/var/lib/containerd' # theirs\n", 'state = "/run/c"\n'])
def test_containerds_root_is_set_where_it_counts(before: str) -> None:
    text = CONTAINERD.format(before)
    after = docker.with_containerd_root(text, "/new")
    assert docker.containerd_root(after) == "/new"
    added = set(after.splitlines()) - set(text.splitlines())
    assert added == {'root = "/new"'}
    assert '    root = "/not/this"' in after
    assert docker.with_containerd_root(after, "/new") == after


def test_containerd_without_a_configuration_gets_one() -> None:
    assert docker.with_containerd_root("", "/new") == 'version = 2\nroot = "/new"\n'
    assert docker.containerd_root("") is None


RUNNING = {"LoadState": "loaded", "ActiveState": "active", "UnitFileState": "enabled", "NeedDaemonReload": "no"}


@pytest.mark.parametrize(
    ("live", "root", "containers", "restarted"),
    [(False, "/new", 2, False), (True, "/old", 2, False), (True, "/new", 2, True), (False, "/old", 0, True)],
)
def test_docker_is_not_restarted_under_containers_that_would_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, live: bool, root: str, containers: int, restarted: bool
) -> None:
    daemon_json = tmp_path / "daemon.json"
    daemon_json.write_text('{"data-root": "/new"}')
    calls: list[list[str]] = []

    def run(command: list[str], seconds: float) -> tuple[int, str, str]:
        calls.append(command)
        said = {"LiveRestoreEnabled": live, "DockerRootDir": root, "ContainersRunning": containers}
        if ["systemctl", "restart", "docker"] in calls:
            said["DockerRootDir"] = "/new"
        return 0, json.dumps(said), ""

    for module in (docker_current, units):
        monkeypatch.setattr(module, "run", run)
    monkeypatch.setattr(docker_current, "look", lambda name: {**RUNNING, "ExecMainStartTimestampMonotonic": "1"})
    result = ended(
        monkeypatch,
        tmp_path,
        docker_current,
        daemon_json=str(daemon_json),
        docker_files=[str(daemon_json)],
        containerd_files=[],
    )
    assert (["systemctl", "restart", "docker"] in calls) is restarted
    assert result["changed"] is restarted
    assert ("older settings because containers run (2)" in result["note"]) is not restarted


@pytest.mark.parametrize(
    ("states", "wait", "expected"),
    [
        (["active/running"], True, "active"),
        (["deactivating/stop-sigterm", "inactive/dead", "activating/start", "active/running"], True, "inactive"),
        (["deactivating/stop-sigterm", "activating/start", "active/running"], True, "active"),
        (["deactivating/stop-sigterm", "activating/start", "active/running"], False, "activating"),
        (["activating/auto-restart", "active/running"], True, "activating"),
        (["activating/start"] * 99, True, "activating"),
    ],
)
def test_a_restart_that_is_under_way_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, states: list[str], wait: bool, expected: str
) -> None:
    seen = (dict(zip(("ActiveState", "SubState"), state.split("/"), strict=True)) for state in states)
    monkeypatch.setattr(units, "look", lambda name: next(seen))
    monkeypatch.setattr(units, "POLL_SECONDS", 0.01)
    assert units.settled("x", 0.2, wait)["ActiveState"] == expected


def test_a_unit_that_was_started_often_of_late_is_started_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    often, asked = True, []

    def systemctl(command: list[str], seconds: float) -> tuple[int, str, str]:
        nonlocal often
        asked.append(command[1])
        if command[1] == "reset-failed":
            often = False
            return 1, "", "Unit x.service not loaded."
        return (1, "", "start of the service was attempted too often") if often else (0, "", "")

    monkeypatch.setattr(units, "run", systemctl)
    units.carry_out("x", [["start", "x"]], 1)
    often = True
    units.carry_out("x", [["restart", "--no-block", "x"]], 1)
    assert asked == ["reset-failed", "start", "reset-failed", "restart"]
    often = True
    monkeypatch.setattr(units, "journal", lambda name: "its last words")
    with pytest.raises(Fault, match="systemctl enable x: start of the service.*its last words"):
        units.carry_out("x", [["enable", "x"]], 1)


def test_a_unit_is_brought_to_its_present_settings(tmp_path: Path) -> None:
    young = tmp_path / "young"
    young.touch()
    unit = {**RUNNING, "ExecMainStartTimestampMonotonic": "0"}
    assert units.steps("x", unit, [str(tmp_path / "missing")]) == []
    assert units.steps("x", unit, [str(young)]) == [["restart", "x"]]
    off = {**unit, "ActiveState": "inactive", "UnitFileState": "disabled", "NeedDaemonReload": "yes"}
    assert units.steps("x", off, [str(young)]) == [["daemon-reload"], ["enable", "x"], ["start", "x"]]
    starting = {**unit, "ActiveState": "activating"}
    assert units.steps("x", starting, []) == [["start", "x"]]
    assert units.steps("x", starting, [], wait=False) == []
    assert units.steps("x", starting, [str(young)], wait=False) == [["restart", "--no-block", "x"]]
    assert units.steps("x", {**unit, "ActiveState": "failed"}, [], wait=False) == [["start", "--no-block", "x"]]


@pytest.mark.once
def test_a_repository_is_trusted_by_one_key_unless_the_image_names_it(role_on_hosts: Any, tmp_path: Path) -> None:
    """tasks/repository.yml with apt's folder elsewhere."""
    line = "deb [signed-by=/usr/share/keyrings/docker.gpg] https://download.docker.com/linux/ubuntu jammy stable\n"
    there = {"added": "", "wrong_key": "", "named": line, "commented_out": f"# {line}"}
    (tmp_path / "key").write_text("a key")
    hosts = {}
    for host, text in there.items():
        (tmp_path / host / "sources.list.d").mkdir(parents=True)
        if text:
            (tmp_path / host / "sources.list.d/theirs.list").write_text(text)
        wanted = {
            "name": "hyperpod-docker",
            "uri": "https://download.docker.com/linux/ubuntu/",
            "components": "stable",
            "key": f"file://{tmp_path}/key",
            "checksum": f"sha256:{hashlib.sha256(b'a key').hexdigest() if host == 'added' else '0' * 64}",
        }
        if host != "added":
            wanted["suite"] = "jammy"
        hosts[host] = {
            "_containers_source": wanted,
            "containers_download_attempts": 0,
        }
    tasks, apt_here = (
        tasks_of("containers", "repository"),
        {"_containers_apt": f"{tmp_path}/{{{{ inventory_hostname }}}}"},
    )
    done = role_on_hosts("containers", tasks, hosts, **apt_here)
    assert {host: done.recap(host)["failed"] for host in hosts} == {
        "added": 0, "wrong_key": 1, "named": 0, "commented_out": 1
    }, done.output  # fmt: skip
    assert done.output.count("checksum") >= 2, done.output
    assert done.recap("named")["changed"] == 0, "a repository that the image names is left"
    for host in ("wrong_key", "commented_out"):
        assert not [path for path in (tmp_path / host).rglob("hyperpod*") if path.is_file()], "another key is refused"
    keyring = tmp_path / "added/keyrings/hyperpod-docker.asc"
    source = (tmp_path / "added/sources.list.d/hyperpod-docker.sources").read_text()
    assert keyring.read_text() == "a key"
    assert re.search(r"^Suites: \w+\nComponents: stable\nSigned-By: (.*)$", source, re.MULTILINE)
    assert f"Signed-By: {keyring}\n" in source
    (tmp_path / "key").unlink()
    done = role_on_hosts("containers", tasks, {"added": hosts["added"]}, **apt_here)
    assert done.recap("added")["failed"] == 0, done.output
    assert done.recap("added")["changed"] == 0, "a key that is there is not fetched again"


def programs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, brings: dict[str, list[str]], wanted: dict[str, str]
) -> dict[str, Any]:
    """Run package_install where each package brings these programs."""

    def install(packages: list[str]) -> None:
        for name in brings[packages[0]]:
            (tmp_path / name).touch(mode=0o755)

    monkeypatch.setattr(apt, "install", install)
    monkeypatch.setattr(apt, "PATH", str(tmp_path))
    return ended(monkeypatch, tmp_path, package_install, programs=wanted)


def test_a_program_that_is_there_or_comes_with_another_package_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wanted = {"dockerd": "docker.io", "docker": "docker-cli"}
    both = {"docker.io": ["dockerd", "docker"]}
    assert programs(monkeypatch, tmp_path, both, wanted)["packages"] == ["docker.io"]
    (tmp_path / "docker").unlink()
    result = programs(monkeypatch, tmp_path, {"docker-cli": ["docker"]}, wanted)
    assert result["packages"] == ["docker-cli"], "what is half there is completed"
    assert not programs(monkeypatch, tmp_path, {}, wanted)["changed"]


def test_a_package_without_its_program_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert programs(monkeypatch, tmp_path, {"a": []}, {"x": "a"})["msg"] == "a is installed and has no x"


def test_the_image_of_the_proof_runs_by_itself(tmp_path: Path) -> None:
    with tarfile.open(fileobj=BytesIO(proof.archive("hello"))) as tar:
        names = tar.getnames()
        assert proof.MARK.lstrip("/") in names
        assert proof.PROGRAM.lstrip("/") in names
        assert any("libc.so" in name for name in names)
        assert any(name.startswith(("lib64/ld-", "lib/ld-")) for name in names)


def test_libraries_are_those_that_the_loader_names() -> None:
    listed = """\
\tlinux-vdso.so.1 (0x00007ffc)
\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f1)
\t/lib64/ld-linux-x86-64.so.2 (0x00007f2)
"""
    assert proof.libraries(listed) == ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]


SUMS = {"4.1.2": {"enroot": "a" * 64, "enroot+caps": "b" * 64}, "4.0.1": {"enroot": "c" * 64, "enroot+caps": "d" * 64}}


def older(one: str, other: str) -> bool:
    """Enough of Debian's order for these versions."""
    return [int(part) for part in one.split("-")[0].split(".")] < [int(part) for part in other.split("-")[0].split(".")]


@pytest.mark.parametrize(
    ("there", "version", "wanted"),
    [
        ({}, "", "4.1.2"),
        ({}, "4.0.1", "4.0.1"),
        ({"enroot": "3.4.1-1", "enroot+caps": "3.4.1-1"}, "", None),
        ({"enroot": "3.4.1-1", "enroot+caps": "3.4.1-1"}, "4.0.1", "4.0.1"),
        ({"enroot": "4.1.2-1", "enroot+caps": "4.1.2-1"}, "4.0.1", None),
        ({"enroot": "4.0.1-1", "enroot+caps": "4.0.1-1"}, "4.0.1", None),
        ({"enroot": "4.0.1-1"}, "", "4.0.1"),
    ],
)
def test_the_enroot_that_is_wanted(there: dict[str, str], version: str, wanted: str | None) -> None:
    assert enroot.wanted_version(there, SUMS, version, older) == wanted


def test_what_is_downloaded_on_arm64() -> None:
    assert enroot.downloads("4.1.2", "arm64", {"amd64": {}, "arm64": SUMS}) == [
        {"file": "enroot_4.1.2-1_arm64.deb", "checksum": f"sha256:{'a' * 64}"},
        {"file": "enroot+caps_4.1.2-1_arm64.deb", "checksum": f"sha256:{'b' * 64}"},
    ]


@pytest.mark.parametrize(
    ("version", "sums"),
    [(None, {}), ("4.2.0", {"amd64": SUMS}), ("4.1.2", {"amd64": {"4.1.2": {"enroot": "a" * 64}}}), ("4.1.2", {})],
)
def test_nothing_is_downloaded_without_checksums(version: str | None, sums: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"no checksums of Enroot.* for amd64 .* containers_enroot_checksums.amd64"):
        enroot.downloads(version, "amd64", sums)


def test_the_roles_own_checksums_are_whole() -> None:
    defaults = yaml.safe_load((ROOT / "collection/roles/containers/defaults/main.yml").read_text())
    for architecture, versions in defaults["containers_enroot_checksums"].items():
        for version in versions:
            for each in enroot.downloads(version, architecture, defaults["containers_enroot_checksums"]):
                assert len(bytes.fromhex(each["checksum"].removeprefix("sha256:"))) == 32
    for digest in defaults["containers_pyxis_checksums"]["all"].values():
        assert len(bytes.fromhex(digest)) == 32


GOOD = {
    "ENROOT_RUNTIME_PATH": "/run/enroot/$(id -u)",
    "ENROOT_CACHE_PATH": "/fsx/enroot",
    "ENROOT_DATA_PATH": f"{NVME}/data/$(id -u)",
    "ENROOT_TEMP_PATH": f"{NVME}/tmp",
}


def conf(**changes: str) -> str:
    return "# the image's\n" + "".join(f"{name}   {value}\n" for name, value in {**GOOD, **changes}.items() if value)


@pytest.mark.parametrize(
    ("text", "disk", "good"),
    [
        (conf(), NVME, True),
        (conf(), VOLUME, False),
        (conf(), "", True),
        (conf(ENROOT_DATA_PATH="/tmp/enroot"), NVME, False),
        (conf(ENROOT_TEMP_PATH=""), NVME, False),
        (conf().replace("ENROOT_DATA", "#ENROOT_DATA"), NVME, False),
        ("", "", False),
        (enroot.HEAD + conf(), NVME, False),
    ],
)
def test_only_a_good_enroot_conf_of_somebody_else_is_kept(text: str, disk: str, good: bool) -> None:
    assert enroot.is_good(text, disk) is good


@pytest.mark.once
def test_enroot_conf_is_what_enroot_reads_or_is_refused(role_on_hosts: Any) -> None:
    """The tasks that check the settings and render enroot.conf."""
    (check,) = (task for task in tasks_of("containers", "discover") if "containers_enroot_settings" in task["name"])
    (write,) = tasks_of("containers", "enroot_settings")
    text = "{{ lookup('ansible.builtin.template', _src, convert_data=false) }}"
    write = {
        "ansible.builtin.set_fact": {"shown": text},
        "vars": {"_src": write["ansible.builtin.template"]["src"]},
    }
    wanted = {**GOOD, "ENROOT_MOUNT_HOME": False, "ENROOT_SQUASH_OPTIONS": "-comp lzo -noD"}
    wrong = {
        "other_name": {"ENROOTDATA": "x"},
        "lower_case": {"enroot_data_path": "x"},
        "two_lines": {"ENROOT_DATA_PATH": "x\ny"},
    }
    here = {
        "__containers_scratch": {"folder": NVME, "root": False},
        "__containers_enroot": {"usable": True, "conf_is_good": False},
    }
    hosts = {host: {**here, "containers_enroot_settings": value} for host, value in {"good": wanted, **wrong}.items()}
    done = role_on_hosts("containers", [check, write], hosts)
    assert set(done.shown) == {"good"}, done.output
    assert done.shown["good"].startswith(enroot.HEAD)
    assert enroot.settings(done.shown["good"]).items() >= {**wanted, "ENROOT_MOUNT_HOME": "no"}.items()
    for value in wrong.values():
        assert f"containers_enroot_settings: {next(iter(value))}: not a setting" in done.output


@pytest.mark.parametrize(
    ("there", "missing"),
    [
        ({}, [f"{name}=1.18.1-1" for name in nvidia.PACKAGES]),
        ({nvidia.PACKAGES[0]: "1.17.9-1"}, [f"{name}=1.17.9-1" for name in nvidia.PACKAGES[1:]]),
        (dict.fromkeys(nvidia.PACKAGES, "1.17.9-1"), []),
        (
            {**dict.fromkeys(nvidia.PACKAGES, "1.19.0-1"), nvidia.PACKAGES[0]: "1.17.9-1"},
            [f"{nvidia.PACKAGES[0]}=1.19.0-1"],
        ),
    ],
)
def test_the_toolkit_is_one_set_in_the_images_version(there: dict[str, str], missing: list[str]) -> None:
    assert nvidia.plan(there, "1.18.1-1", older) == missing


def test_why_a_node_has_no_use_for_the_toolkit() -> None:
    assert "no NVIDIA device" in nvidia.reason(devices=False, driver=False)
    assert "no driver" in nvidia.reason(devices=True, driver=False)
    assert nvidia.reason(devices=True, driver=True) == ""


def test_pyxis_is_found_wherever_plugstack_conf_names_it(tmp_path: Path) -> None:
    plugstack, folder = tmp_path / "plugstack.conf", tmp_path / "plugstack.conf.d"
    folder.mkdir()
    assert pyxis_files.registered(str(plugstack)) == []
    plugstack.write_text("# required /x/spank_pyxis.so\noptional /x/other.so\ninclude plugstack.conf.d/*\n")
    assert pyxis_files.registered(str(plugstack)) == []
    (folder / "pyxis.conf").write_text("required /usr/local/lib/slurm/spank_pyxis.so runtime_path=/run/pyxis\n")
    assert pyxis_files.registered(str(plugstack)) == ["/usr/local/lib/slurm/spank_pyxis.so"]
    plugstack.write_text(f"include {plugstack}\nREQUIRED /opt/spank_pyxis.so\n")
    assert pyxis_files.registered(str(plugstack)) == ["/opt/spank_pyxis.so"]


class Slurm:
    """A Slurm of some version that loads plugins which were built for it, as `srun` shows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.version, self.root = "24.11.5", tmp_path
        self.plugin = tmp_path / "usr/lib/slurm/spank_pyxis.so"
        self.built: list[str] = []
        monkeypatch.setattr(pyxis_files, "slurm_version", lambda prefix: self.version)
        monkeypatch.setattr(pyxis_files, "loads", self.loads)
        monkeypatch.setattr(pyxis_build, "build", self.build)
        self._monkeypatch = monkeypatch

    def loads(self, plugin: Path, prefix: str) -> str:
        return "" if plugin.read_text() == f"for {self.version}" else "Incompatible plugin version"

    def build(self, source: str, prefix: str, root: str, stage: Path, seconds: int) -> Path:
        self.built.append(self.version)
        (stage / "made").write_text(f"for {self.version}")
        return stage / "made"

    def run(self, source: str | None = "source", checksum: str = "sha256:1") -> dict[str, Any]:
        return ended(
            self._monkeypatch,
            self.root,
            pyxis_build,
            plugstack=str(self.root / "plugstack.conf"),
            include=str(self.root / "plugstack.conf.d/pyxis.conf"),
            prefix="/opt/slurm",
            root=str(self.root / "usr"),
            checksum=checksum,
            source=source and str(self.root / source),
        )


@pytest.fixture
def slurm_in_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Slurm:
    return Slurm(monkeypatch, tmp_path)


def test_pyxis_is_built_once_for_each_slurm_and_source(slurm_in_use: Slurm) -> None:
    slurm = slurm_in_use
    assert slurm.run(source=None)["needed"]
    assert not slurm.run(source=None)["changed"], "without the source nothing is done"
    result = slurm.run()
    assert (result["changed"], result["include"]) == (True, str(slurm.root / "plugstack.conf.d/pyxis.conf"))
    assert (slurm.root / "plugstack.conf.d/pyxis.conf").read_text() == f"required {slurm.plugin}\n"
    assert not slurm.run()["changed"]
    slurm.version = "25.11.0"
    assert slurm.run(source=None)["needed"]
    assert slurm.run()["changed"]
    assert slurm.run(checksum="sha256:2")["changed"]
    assert slurm.built == ["24.11.5", "25.11.0", "25.11.0"]
    slurm.plugin.write_text("somebody's")
    assert slurm.run(checksum="sha256:2")["changed"], "what somebody has put in its place is not ours"


def test_a_pyxis_of_the_image_is_kept_as_long_as_slurm_loads_it(slurm_in_use: Slurm) -> None:
    slurm = slurm_in_use
    theirs = slurm.root / "opt/spank_pyxis.so"
    theirs.parent.mkdir()
    theirs.write_text("for 24.11.5")
    (slurm.root / "plugstack.conf").write_text(f"required {theirs}\n")
    result = slurm.run()
    assert (result["changed"], result["needed"], result["include"]) == (False, False, "")
    slurm.version = "25.11.0"
    assert slurm.run()["changed"]
    assert theirs.read_text() == "for 25.11.0", "built anew in its place, so that it is not named twice"
    assert not (slurm.root / "plugstack.conf.d").exists()
    assert not slurm.run()["changed"]


def test_the_source_must_be_one(tmp_path: Path) -> None:
    source = tmp_path / "x.tar.gz"
    with tarfile.open(source, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("pyxis-1/README"), BytesIO())
    (tmp_path / "stage").mkdir()
    with pytest.raises(Fault, match="no folder with a Makefile"):
        pyxis_build.build(str(source), "/opt/slurm", "/usr/local", tmp_path / "stage", 10)
    source.write_bytes(b"<html>")
    with pytest.raises(Fault, match="cannot be unpacked"):
        pyxis_build.build(str(source), "/opt/slurm", "/usr/local", tmp_path / "stage", 10)


@pytest.mark.parametrize(
    ("before", "include", "after"),
    [
        ("", "/d/pyxis.conf", "include /d/pyxis.conf\n"),
        ("required /x.so\n", "/d/pyxis.conf", "required /x.so\ninclude /d/pyxis.conf\n"),
        ("include /d/pyxis.conf\n", "/d/pyxis.conf", "include /d/pyxis.conf\n"),
        ("include {d}/*\n", "{d}/pyxis.conf", f"{slurm.MARK}{{d}}/*\ninclude {{d}}/pyxis.conf\n{slurm.END}\n"),
    ],
)
def test_plugstack_conf_names_pyxis_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: str, include: str, after: str
) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/pyxis.conf").touch()
    path, where = tmp_path / "plugstack.conf", {"d": str(tmp_path / "d")}
    if before:
        path.write_text(before.format(**where))
    for _run in range(2):
        ended(monkeypatch, tmp_path, slurm_plugstack_include, path=str(path), include=include.format(**where))
        assert path.read_text() == after.format(**where)


def test_slurmctld_is_told_of_younger_files_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file, stamp = tmp_path / "plugstack.conf", tmp_path / "lib/stamp"
    file.touch()
    calls: list[list[str]] = []
    state = {"ActiveState": "active", "ExecMainStartTimestampMonotonic": "0"}
    monkeypatch.setattr(slurmctld_reload, "look", lambda name: state)
    monkeypatch.setattr(slurmctld_reload, "run", lambda command, seconds: (calls.append(command), (0, "", ""))[1])
    params = {"files": [str(file), "/missing"], "prefix": "/opt/slurm", "stamp": str(stamp)}
    for changed in (True, False):
        assert ended(monkeypatch, tmp_path, slurmctld_reload, **params)["changed"] is changed
    os.utime(file, (stamp.stat().st_mtime + 1,) * 2)
    assert ended(monkeypatch, tmp_path, slurmctld_reload, **params)["changed"]
    assert calls == [["/opt/slurm/bin/scontrol", "reconfigure"]] * 2
    state["ActiveState"] = "inactive"
    os.utime(file, (stamp.stat().st_mtime + 9,) * 2)
    assert not ended(monkeypatch, tmp_path, slurmctld_reload, **params)["changed"]


class Programs:
    """In the place of docker and enroot: what they list, and what they are told to do."""

    def __init__(self, listed: list[str], left: str = "") -> None:
        self.listed, self.left, self.calls = listed, left, list[str]()

    def run(self, command: list[str], seconds: float, data: Any = "") -> tuple[int, str, str]:
        self.calls.append(" ".join(command))
        if "images" in command or "list" in command:
            return 0, "\n".join(self.listed), ""
        if "ps" in command:
            return 0, "c0ffee\n" if self.left and self.left in command[-1] else "", ""
        return 0, "proof", ""


@pytest.fixture
def litter() -> list[str]:
    """Names of a proof that was killed, of one that runs, of another node's, and of somebody else's."""
    done = subprocess.Popen(["true"])
    done.wait()
    own = leftovers.own_name("proof")
    killed = own.replace(f"p{os.getpid()}", f"p{done.pid}")
    return [killed, own, killed.replace("proof-", "proof-x"), "ubuntu"]


def test_docker_keeps_nothing_of_a_proof_that_was_killed(monkeypatch: pytest.MonkeyPatch, litter: list[str]) -> None:
    programs = Programs(litter, litter[0])
    monkeypatch.setattr(proof, "run", programs.run)
    proof.remove_left_images()
    assert programs.calls[2:] == ["docker rm --force c0ffee", f"docker rmi --force {litter[0]}"]


def test_enroot_keeps_nothing_of_a_proof_that_was_killed(monkeypatch: pytest.MonkeyPatch, litter: list[str]) -> None:
    programs = Programs(litter)
    monkeypatch.setattr(proof, "run", programs.run)
    proof.remove_left_containers("ubuntu")
    (removed,) = [call for call in programs.calls if "remove" in call]
    assert removed.endswith(f"enroot remove --force {litter[0]}")


def test_downloads_go_to_shared_storage_only_where_it_is_mounted() -> None:
    nothing = f"{ROOT_DISK}\n"
    assert scratch.is_shared(f"{nothing}33 20 0:50 / /fsx rw - lustre 10.0.0.9@tcp:/abc rw\n", "/fsx")
    assert scratch.is_shared(f"{nothing}33 20 0:50 / /fsx rw - fuse.lustre 10.0.0.9@tcp:/abc rw\n", "/fsx")
    for other in (
        "",
        "33 20 0:50 / /home rw - nfs4 fs-1:/fsx rw",
        "33 20 0:50 / /fsx rw - autofs systemd-1 rw",
        "33 20 0:50 / /fsx rw - ext4 /dev/sdb rw",
    ):
        assert not scratch.is_shared(f"{nothing}{other}\n", "/fsx")
