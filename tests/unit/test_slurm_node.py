# SPDX-License-Identifier: Apache-2.0
"""What a run says and does about a node, by what `scontrol` says of it."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import commands, slurm, slurm_node
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.slurm_node import (
    BLOCKED,
    BROKEN,
    INVALID,
    READY,
    RESERVED,
)
from ansible_collections.hyperpod.lifecycle.plugins.modules import slurm_daemon_verify

#: Recorded in a lab, Slurm 24.11; the end of the line is what differs by case.
RECORD = (
    "NodeName=ip-10-70-0-10 Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUEfctv=2 CPUTot=2 CPULoad=7.47 "
    "AvailableFeatures=(null) ActiveFeatures=(null) Gres=(null) NodeAddr=10.70.0.10 NodeHostName=ip-10-70-0-10 "
    "Version=24.11.5 OS=Linux 6.18.44 #1 SMP @0  RealMemory=25069 AllocMem=0 FreeMem=18852 Sockets=2 Boards=1 "
    "State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=dev  "
    "BootTime=2026-12-01T09:11:17 SlurmdStartTime=2026-12-01T13:27:18 LastBusyTime=2026-12-01T13:27:33 "
    "ResumeAfterTime=None CfgTRES=cpu=2,mem=25069M,billing=2 AllocTRES= CurrentWatts=0 AveWatts=0 {more}"
)
GRES = "gres/gpu count reported lower than configured (0 < 8)"
REBOOTED = "Node unexpectedly rebooted"


def record(state: str, reason: str = "", by: str = "root@2026-12-01T13:30:00", more: str = "") -> str:
    said = f"  Reason={reason} [{by}]" if reason else ""
    return RECORD.format(state=state, more=more + said)


def judge(state: str, reason: str = "", more: str = "", **verdicts: str) -> Any:
    given = {name: {"status": status, "reason": f"{name} is full"} for name, status in verdicts.items()}
    return slurm_node.judge(slurm_node.parse(record(state, reason, more=more)), given)


def test_a_record_of_scontrol() -> None:
    node = slurm_node.parse(record("IDLE+CLOUD+DRAIN", "disk = bad [sda]", "amy@2026-12-01T13:30:00", " Comment=a b"))
    assert (node.name, node.address, node.base) == ("ip-10-70-0-10", "10.70.0.10", "IDLE")
    assert (node.reason, node.by) == ("disk = bad [sda]", "amy@2026-12-01T13:30:00")
    assert node.flags == {"CLOUD", "DRAIN"}
    assert slurm_node.parse(record("IDLE")).reason == ""
    assert slurm_node.parse(record("IDLE+MAINTENANCE", more=" ReservationName=checks")).reservation == "checks"


@pytest.mark.parametrize("state", ["IDLE+CLOUD", "MIXED+CLOUD", "ALLOCATED", "IDLE+PLANNED", "IDLE+COMPLETING"])
def test_a_node_is_ready_where_slurm_starts_a_job_now(state: str) -> None:
    assert judge(state) == (READY, "", "")


@pytest.mark.parametrize(
    ("state", "reason", "expected"),
    [
        ("IDLE+DRAIN", "disk", BLOCKED),
        ("MIXED+DRAIN", "", BLOCKED),
        ("DOWN", "", BLOCKED),
        ("DOWN+DRAIN", "power supply", BLOCKED),
        ("IDLE+FAIL", "Action:Replace", BLOCKED),
        ("IDLE+FAIL", REBOOTED, BLOCKED),
        ("DOWN+DRAIN+INVALID_REG", GRES, INVALID),
        ("IDLE+CLOUD+POWERED_DOWN", "", INVALID),
        ("IDLE+REBOOT_REQUESTED", "", INVALID),
        ("DOWN*+CLOUD", "Not responding", BROKEN),
        ("UNKNOWN", "", BROKEN),
        ("IDLE+CLOUD+NOT_RESPONDING", "", BROKEN),
        ("IDLE+MAINTENANCE", "", RESERVED),
    ],
)
def test_a_node_that_slurm_does_not_use_is_never_ready_nor_resumed(state: str, reason: str, expected: str) -> None:
    found = judge(state, reason, fsx="ok")
    assert (found.state, found.action) == (expected, "")
    assert reason in found.said or expected == BROKEN


@pytest.mark.parametrize(
    "reason",
    [
        GRES,
        REBOOTED,
        "Not responding",
        "gres/gpu count too low (0 < 8)",
        "Low RealMemory (reported:900 < 100.00% of configured:1000), Low socket*core*thread count, Low CPUs",
    ],
)
@pytest.mark.parametrize("state", ["IDLE+CLOUD+DRAIN", "DOWN"])
def test_a_reason_of_slurms_own_is_lifted_once_the_node_answers(state: str, reason: str) -> None:
    assert judge(state, reason).action == "resume"
    assert judge(f"{state}+INVALID_REG", reason).action == ""
    assert judge(f"{state}+NOT_RESPONDING", reason).action == ""
    assert judge(state, f"{reason}, see the ticket").action == ""
    assert judge(state, reason, fsx="blocked").action == "", "it would be drained again"


def test_a_persons_reason_stays_and_is_told() -> None:
    found = judge("IDLE+DRAIN", "disk sda")
    assert "ip-10-70-0-10 is IDLE+DRAIN: disk sda (set by root@2026-12-01T13:30:00); " in found.said
    assert "scontrol update nodename=ip-10-70-0-10 state=resume" in found.said


def test_our_own_drain_is_lifted_by_a_run_that_finds_it_mended() -> None:
    drained = judge("IDLE+CLOUD", fsx="blocked", homes="ok")
    assert (drained.state, drained.action) == (BLOCKED, "drain")
    assert drained.said == "hyperpod-lifecycle: fsx: fsx is full"
    assert judge("IDLE+DRAIN", drained.said, fsx="ok").action == "resume"
    for verdicts in ({}, {"fsx": "blocked"}, {"homes": "ok"}, {"fsx": "ok", "homes": "blocked"}):
        found = judge("IDLE+DRAIN", drained.said, **verdicts)
        assert (found.state, found.action) == (BLOCKED, ""), verdicts
        assert "hyperpod-lifecycle apply --tags fsx,slurm" in found.said


def test_a_maintenance_reservation_is_no_drain_and_another_one_only_a_note() -> None:
    found = judge("IDLE+MAINTENANCE", more=" ReservationName=deep")
    assert found.state == RESERVED
    assert "a maintenance reservation (deep) holds ip-10-70-0-10" in found.said
    assert judge("IDLE+MAINTENANCE+DRAIN", "disk").state == BLOCKED
    note = "ip-10-70-0-10 is in a reservation (course)"
    assert judge("IDLE+RESERVED", more=" ReservationName=course") == (READY, note, "")


class Watch(slurm_daemon_verify.Watch):
    """A look at slurmd with a controller that keeps this node's state and reason, as Slurm does."""

    def __init__(self, state: str, reason: str = "", listed: str = "", **verdicts: str) -> None:
        self.name, self.address, self.controllers, self.port = "ip-10-70-0-10", "10.70.0.10", ["10.70.0.1"], 6817
        self.daemon, self.updates = "slurmd", []
        self.verdicts = {name: {"status": status, "reason": f"{name} is full"} for name, status in verdicts.items()}
        self.state, self.reason, self.listed = state, reason, listed

    def run(self, *command: str) -> tuple[int, str]:
        return 0, "0"

    def accepting(self) -> int:
        return 1

    def scontrol(self, *words: str) -> tuple[int, str]:
        if words[0] == "update":
            given = dict(word.split("=", 1) for word in words[1:])
            self.state = {"resume": "IDLE", "drain": "IDLE+DRAIN"}[given["state"]]
            self.reason = given.get("reason", "")
            return 0, ""
        if self.listed:
            return (1, "Node ip-10-70-0-10 cannot be found") if len(words) == 4 else (0, self.listed)
        return 0, record(self.state, self.reason)


@pytest.mark.parametrize(("state", "reason"), [("IDLE+DRAIN", GRES), ("DOWN", REBOOTED)])
def test_a_drained_node_is_not_reported_ok_case_01(state: str, reason: str) -> None:
    watch = Watch(state, reason)
    assert watch.compute() == (READY, "")
    assert (watch.state, watch.updates) == ("IDLE", ["resume"])
    watch = Watch(state, "disk sda")
    found = watch.compute()
    assert (found[0], watch.state, watch.updates) == (BLOCKED, state, [])
    assert "disk sda" in found[1]
    assert state in found[1]


def test_a_node_is_drained_for_a_blocked_concern_and_by_the_mended_one_resumed() -> None:
    watch = Watch("IDLE", fsx="blocked")
    assert watch.compute()[0] == BLOCKED
    assert (watch.state, watch.reason) == ("IDLE+DRAIN", "hyperpod-lifecycle: fsx: fsx is full")
    again = Watch(watch.state, watch.reason, fsx="blocked")
    assert (again.compute()[0], again.updates) == (BLOCKED, [])
    partial = Watch(watch.state, watch.reason)
    assert (partial.compute()[0], partial.updates) == (BLOCKED, [])
    mended = Watch(watch.state, watch.reason, fsx="ok")
    assert mended.compute() == (READY, "")
    assert mended.updates == ["resume"]


def test_an_unknown_name_is_known_by_the_list_of_nodes_and_a_node_by_its_address() -> None:
    other = record("IDLE").replace("10-70-0-10", "10-70-0-11").replace("10.70.0.10", "10.70.0.11")
    assert Watch("", listed=other).compute()[0] == slurm_daemon_verify.NOT_REGISTERED
    own = record("IDLE+DRAIN", "disk").replace("NodeName=ip-10-70-0-10", "NodeName=compute-nodes-1")
    found = Watch("", listed=f"{other}\n{own}").compute()
    assert found[0] == BLOCKED
    assert found[1].startswith("compute-nodes-1 is IDLE+DRAIN: disk")


def test_a_log_is_quoted_from_the_runs_start_on_case_19(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    lines = ["[2026-12-01T13:00:00.100] error: old", " its rest", "[2026-12-01T13:10:00.001] error: new", " more"]
    assert commands.lines_since(lines, 1796130600) == lines[2:]
    assert commands.lines_since(lines, 0) == lines
    assert commands.lines_since(lines[:2], 1796130600) == []
    asked: list[list[str]] = []
    monkeypatch.setattr(commands, "run", lambda command, _seconds: asked.append(command) or (0, "", ""))
    monkeypatch.setenv("HYPERPOD_LIFECYCLE_STARTED", "1796130600")
    commands.journal("slurmctld")
    assert "--since=@1796130600" in asked[0]


def test_a_refused_configuration_is_told_by_slurms_own_commands_case_19(monkeypatch: pytest.MonkeyPatch) -> None:
    said = 'scontrol: error: Parse error in file /opt/slurm/etc/slurm.conf line 3: "AccountingStorageTRES: gres/gpu"'
    answers = [(1, "", said), (1, "", said), (0, "", "")]
    monkeypatch.setattr(slurm, "pause", lambda _seconds: None)
    monkeypatch.setattr(slurm, "run", lambda _command, _seconds: answers.pop(0))
    assert slurm.refused("scontrol") == "", "the agent was writing it"
    monkeypatch.setattr(slurm, "run", lambda _command, _seconds: (1, "", f"{said}\nscontrol: fatal: no"))
    assert slurm.refused("scontrol") == f"Slurm refuses its configuration: {said} scontrol: fatal: no; correct it"
