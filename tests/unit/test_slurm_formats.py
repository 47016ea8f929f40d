# SPDX-License-Identifier: Apache-2.0
"""Slurm's text formats, as the modules read and write them."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import accounting, configless, slurm

CONF = """\
# SlurmctldHost=comment(1.1.1.1)
ClusterName=otter
SlurmctldHost=ip-10-0-0-10(10.0.0.10)
slurmctldhost = ip-10-0-0-7 ( not one )
SlurmctldHost=ip-10-0-0-8
NodeName=ip-10-0-1-1 NodeAddr=10.0.1.1 \\
   CPUs=4
NodeName=ip-10-0-1-2 CPUs=4 # the second
PartitionName=dev Nodes=ALL
TaskPlugin=task/none
TopologyPlugin=topology/tree
Include accounting.conf
"""


def test_controllers_are_whole_names_and_addresses() -> None:
    assert slurm.controllers(CONF) == ["ip-10-0-0-10", "10.0.0.10", "ip-10-0-0-8"]
    assert "10.0.0.1" not in slurm.controllers(CONF)
    assert slurm.controller_hosts(CONF) == [("ip-10-0-0-10", "10.0.0.10"), ("ip-10-0-0-8", "ip-10-0-0-8")]


def test_managed_parameters_keep_order_and_join_continued_lines() -> None:
    managed = slurm.managed(CONF)
    assert managed["NodeName"] == ["ip-10-0-1-1 NodeAddr=10.0.1.1 CPUs=4", "ip-10-0-1-2 CPUs=4"]
    assert managed["TaskPlugin"] == ["task/none"]
    assert managed["TopologyPlugin"] == ["topology/tree"]
    assert "Include" not in managed


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("TaskPlugin=task/none", "TaskPlugin=task/cgroup", ["TaskPlugin=task/none became task/cgroup"]),
        ("TaskPlugin=task/none\n", "", ["TaskPlugin=task/none became absent"]),
        ("PartitionName=dev Nodes=ALL\n", "", ["PartitionName=dev Nodes=ALL became absent"]),
        ("TopologyPlugin=topology/tree\n", "", ["TopologyPlugin=topology/tree became absent"]),
        ("Include", "TopologyParam=RouteTree\nInclude", ["TopologyParam=absent became RouteTree"]),
        ("Include accounting.conf", "Include other.conf", []),
    ],
)
def test_what_an_edit_would_change_of_the_agents(old: str, new: str, expected: list[str]) -> None:
    assert old in CONF
    assert slurm.touched(CONF, CONF.replace(old, new)) == expected


def test_hostlist() -> None:
    assert slurm.hostlist("a[1-2,07],b,c[1-2]x[3]") == ["a1", "a2", "a07", "b", "c1x3", "c2x3"]
    assert slurm.hostlist("ip-10-0-1-[08-10]") == ["ip-10-0-1-08", "ip-10-0-1-09", "ip-10-0-1-10"]


def test_wildcard_includes_become_explicit_and_follow_the_folder() -> None:
    first = slurm.expand_includes("required a.so\ninclude /d/*.conf\n", lambda pattern: ["/d/x.conf", "/d/y.conf"])
    assert first.splitlines() == [
        "required a.so",
        "# hyperpod-lifecycle: was include /d/*.conf",
        "include /d/x.conf",
        "include /d/y.conf",
        "# hyperpod-lifecycle: end of include",
    ]
    assert slurm.expand_includes(first, lambda pattern: ["/d/x.conf", "/d/y.conf"]) == first, "again changes nothing"
    assert "x.conf" not in slurm.expand_includes(first, lambda pattern: ["/d/y.conf"]), "a file that has gone"
    theirs = first.replace(slurm.END, "optional b.so\ninclude /e/own") + "required c.so\n"
    lines = slurm.expand_includes(theirs, lambda pattern: ["/d/y.conf"]).splitlines()
    for line in ("required a.so", "optional b.so", "include /e/own", "required c.so", "include /d/y.conf"):
        assert lines.count(line) == 1, "a foreign line, though the end mark has gone"
    explicit = "include /d/one.conf\noptional b.so\n"
    assert slurm.expand_includes(explicit, lambda pattern: pytest.fail("nothing to expand")) == explicit


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("IDLE", ("IDLE", set())),
        ("IDLE*+DRAIN", ("IDLE", {"DRAIN", "NOT_RESPONDING"})),
        ("DOWN+INVALID_REG", ("DOWN", {"INVALID_REG"})),
        ("UNKNOWN*", ("UNKNOWN", {"NOT_RESPONDING"})),
        ("DOWN+NOT_RESPONDING", ("DOWN", {"NOT_RESPONDING"})),
    ],
)
def test_node_state(state: str, expected: tuple[str, set[str]]) -> None:
    base, flags = slurm.node_state(f"NodeName=a Arch=x86_64 State={state} ThreadsPerCore=1")
    assert (base, set(flags)) == expected


PING = "Slurmctld(primary) at a-1 is UP\nSlurmctld(backup) at a-11 is DOWN\n"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a-1", ("primary", "UP")), ("a-11", ("backup", "DOWN")), ("b", ("", "UP"))],
)
def test_ping_is_about_one_controller(name: str, expected: tuple[str, str]) -> None:
    assert slurm.ping(PING, name) == expected
    assert slurm.ping("slurm_ping error", name) == ("", "DOWN")


UNIT = "[Service]\nType=notify\nExecStart=/opt/slurm/sbin/slurmd --systemd {options}\nExecReload=/bin/kill -HUP \n"


@pytest.mark.parametrize(
    "options",
    [
        "$SLURMD_OPTIONS",
        "--conf-server 10.0.0.1 $SLURMD_OPTIONS",
        "--conf-server=10.0.0.1:6817,10.0.0.2:6817 $SLURMD_OPTIONS",
        "\\\n    $SLURMD_OPTIONS \\\n    --conf-server 10.0.0.1:6817",
    ],
)
def test_drop_in_replaces_what_other_scripts_have_put_into_the_unit(options: str) -> None:
    lines = slurm.drop_in("slurmd", UNIT.format(options=options), "10.0.0.9:6817", 10).splitlines()
    assert lines.index("ExecStart=") < lines.index(
        "ExecStart=/opt/slurm/sbin/slurmd --systemd $SLURMD_OPTIONS --conf-server 10.0.0.9:6817"
    )
    assert "10.0.0.1" not in " ".join(lines)
    assert "ExecReload=/bin/kill -HUP $MAINPID" in lines


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("ExecStart=/bin/a\nExecStart=\nExecStart=/bin/b -c\n", "/bin/b -c"),
        ("  ExecStart = /bin/a -c \r\n", "/bin/a -c"),
        ("#ExecStart=/bin/a\nExecStartPre=/bin/b\n", ""),
        ("ExecStart=\nExecReload=/bin/c\n", ""),
    ],
)
def test_the_command_of_a_unit(unit: str, expected: str) -> None:
    assert slurm.exec_start(unit) == expected


def test_drop_in_of_slurmctld_has_no_conf_server_and_lets_it_end_in_its_time() -> None:
    text = slurm.drop_in("slurmctld", UNIT.format(options=""), "", 10)
    assert "ExecStart" not in text
    assert "TimeoutStopSec" not in text
    assert "TimeoutStopSec" in slurm.drop_in("slurmdbd", UNIT.format(options=""), "", 10)


@pytest.mark.parametrize(
    ("slurm_conf", "slurmdbd_conf", "expected"),
    [
        ("", "", {"slurmctld": 6817, "slurmdbd": 6819}),
        ("SlurmctldPort=7817\n", "", {"slurmctld": 7817, "slurmdbd": 6819}),
        ("slurmctldport = 7817-7820 # four\n", "DbdPort=7819\n", {"slurmctld": 7817, "slurmdbd": 7819}),
        ("AccountingStoragePort=8819\n", "DbdPort=7819\n", {"slurmctld": 6817, "slurmdbd": 8819}),
        ("AccountingStoragePort=0\n", "DbdPort=\n", {"slurmctld": 6817, "slurmdbd": 6819}),
        ("Include more.conf\nInclude accounting.conf\n", "", {"slurmctld": 9817, "slurmdbd": 6819}),
    ],
)
def test_ports_are_what_the_files_say(
    tmp_path: Path, slurm_conf: str, slurmdbd_conf: str, expected: dict[str, int]
) -> None:
    (tmp_path / "slurm.conf").write_text(slurm_conf)
    (tmp_path / "more.conf").write_text("SlurmctldPort=9817\n")
    own = accounting.with_block("", "accounting", {"AccountingStoragePort": 1})
    (tmp_path / "accounting.conf").write_text(own)
    found = accounting.all_parameters(str(tmp_path / "slurm.conf"), "accounting")
    assert slurm.ports(found, slurmdbd_conf) == expected


@pytest.mark.parametrize("name", ["ip-10-0-0-2", "ip-10-0-0-2.us-west-2.compute.internal", "IP-10-0-0-2"])
def test_a_controller_is_known_by_its_long_name_too(name: str) -> None:
    answer = "Slurmctld(primary) at ip-10-0-0-1 is UP\n"
    answer += "Slurmctld(backup1) at ip-10-0-0-2.us-west-2.compute.internal is DOWN\n"
    assert slurm.ping(answer, name) == ("backup", "DOWN")
    assert slurm.another_in_charge(answer, name)
    assert not slurm.another_in_charge(answer, "ip-10-0-0-20")


NODES = """\
NodeName=DEFAULT CPUs=4
NodeName=login-group-1 NodeHostname=ip-10-0-1-7 NodeAddr=10.0.1.7 CPUs=4 State=CLOUD
nodename=gpu-[1-2,07] NodeAddr=10.0.2.[1-2,07] \\
   Gres=gpu:8
NodeName=ip-10-0-3-1 CPUs=4
NodeName=ip-10-0-1-1 NodeHostName=ip-10-0-9-9
"""
ANSWER = """\
NodeName=login-group-1 Arch=x86_64 NodeAddr=10.0.1.7 NodeHostName=ip-10-0-1-7 OS=Linux 6.1 #1 State=IDLE+CLOUD
NodeName=ip-10-0-1-1 NodeAddr=10.0.1.1 NodeHostName=ip-10-0-1-1 State=IDLE Reason=NodeAddr=10.0.1.9
"""


@pytest.mark.parametrize(
    ("text", "address", "host", "expected"),
    [
        (NODES, "10.0.1.7", "ip-10-0-1-7", "login-group-1"),
        (NODES, "10.0.1.70", "ip-10-0-1-70", ""),
        (NODES, "10.0.2.2", "ip-10-0-2-2", "gpu-2"),
        (NODES, "10.0.3.1", "ip-10-0-3-1.ec2.internal", "ip-10-0-3-1"),
        (NODES, "10.0.9.9", "ip-10-0-9-9", "ip-10-0-1-1"),
        (NODES, "10.0.1.1", "ip-10-0-1-1", ""),
        (ANSWER, "10.0.1.7", "ip-10-0-1-7", "login-group-1"),
        (ANSWER, "10.0.1.9", "ip-10-0-1-9", ""),
        ("No nodes in the system\n", "10.0.1.9", "ip-10-0-1-9", ""),
    ],
)
def test_a_node_is_found_by_its_address_and_not_by_its_name(text: str, address: str, host: str, expected: str) -> None:
    assert slurm.node_name(text, address, host) == expected


def test_the_daemons_of_a_login_node_do_not_leave_their_configuration_to_each_other() -> None:
    for daemon, expected in (("slurmd", "[ -L /run/slurm/conf ]"), ("sackd", "[ ! -L /run/slurm/conf ]")):
        text = slurm.drop_in(daemon, UNIT.format(options=""), "10.0.0.9:6817", 10)
        (before,) = [line for line in text.splitlines() if line.startswith("ExecStartPre=")]
        assert expected in before


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(configless, "FETCHED", (tmp_path / "run/slurm.conf", tmp_path / "cache/slurm.conf"))
    (tmp_path / "run").mkdir()
    return tmp_path / "run/slurm.conf"


def test_a_fetched_configuration_of_another_cluster_is_no_answer(fetched: Path) -> None:
    assert configless.on_disk(["10.0.0.10"]) == ""
    fetched.write_text(CONF)
    assert configless.on_disk(["10.0.0.10"]) == CONF
    assert configless.on_disk(["10.0.0.10", "10.0.0.11"]) == ""
    assert configless.on_disk([]) == CONF


def test_a_stale_slurm_conf_of_the_nodes_own_is_named(fetched: Path, tmp_path: Path) -> None:
    own = tmp_path / "slurm.conf"
    assert configless.stale(own) == ""
    own.write_text(CONF)
    assert configless.stale(own) == "", "there is nothing to compare it with"
    fetched.write_text("# As it was sent.\n" + CONF)
    assert configless.stale(own) == ""
    fetched.write_text(CONF + "NodeName=ip-10-0-1-3 CPUs=4\n")
    assert configless.stale(str(own)).startswith(f"{own} is not what the controllers send")
