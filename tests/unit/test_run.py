# SPDX-License-Identifier: Apache-2.0
"""A run through the real ansible-runner, with small playbooks on this machine."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from polling import wait_for

from hyperpod_lifecycle import ansible_run, assumptions, inputs, processes, run
from hyperpod_lifecycle.addresses import own_addresses
from hyperpod_lifecycle.errors import ExitCode
from hyperpod_lifecycle.options import Options, Site
from hyperpod_lifecycle.paths import Paths
from hyperpod_lifecycle.progress import Progress
from hyperpod_lifecycle.report import Report, read

NAME = "workers-1"

PLATFORM = """
- name: platform
  hosts: hyperpod
  gather_facts: false
  tags: [always]
  tasks:
    - name: Look
      ansible.builtin.assert: {that: hyperpod_node_type == 'compute', quiet: true}
"""


#: What the probes of a node find.
FINDINGS = [
    assumptions.Finding("lid", "a lid opens", "", "seen", "painting", assumptions.DOES_NOT_HOLD, "it is stuck"),
    assumptions.Finding("brush", "there is a brush", "", "seen", "painting", assumptions.HOLDS, ""),
]


@dataclass
class Machine:
    """This machine as a node, with directories of its own."""

    root: Path
    options: dict[str, Any] = field(default_factory=dict)
    screen: str = ""

    @property
    def paths(self) -> Paths:
        return Paths(self.root / "log", self.root / "run", self.root / "etc", self.root / "platform")

    @property
    def site(self) -> Path:
        return self.root / "site.yml"

    def write_site(self, plays: str) -> None:
        self.site.write_text(textwrap.dedent(plays), encoding="utf-8")

    def apply(self, plays: str, **options: Any) -> Report:
        self.write_site(plays)
        screen = io.StringIO()
        log = None if options.get("check") else self.paths.log_file
        asked = Options(connection="local", **options)
        report = run.apply(asked, Progress(screen, log), self.paths, Site(playbook=str(self.site)))
        self.screen = screen.getvalue()
        return report

    def start(self, plays: str, before: str = "", **options: Any) -> subprocess.Popen[str]:
        """The same in a process of its own, after some lines of Python."""
        self.write_site(plays)
        script = f"""
            import sys
            from pathlib import Path
            from hyperpod_lifecycle import run
            from hyperpod_lifecycle.options import Options, Site
            from hyperpod_lifecycle.paths import Paths
            from hyperpod_lifecycle.progress import Progress
            paths = Paths(*(Path({str(self.root)!r}, name) for name in ("log", "run", "etc", "platform")))
            options = Options(connection="local", **{options!r})
            site = Site(playbook={str(self.site)!r})
            run.require_root = lambda _options: None
            report = run.apply(options, Progress(sys.stdout, paths.log_file), paths, site)
            print(report.summary)
            sys.exit(report.exit_code)
        """
        return subprocess.Popen(
            [sys.executable, "-c", before + textwrap.dedent(script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def left(self) -> set[str]:
        """What is in the folder of runs."""
        return {path.name for path in self.paths.run_dir.iterdir()}

    def marked(self) -> list[int]:
        """Processes of any run of this machine."""
        return sorted(processes.family(self.paths.run_dir))


@pytest.fixture
def machine(tmp_path: Path, packed_modules: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """What is written is below `tmp_path`, so that any user may do it. Packed modules are those of earlier tests."""
    monkeypatch.setattr(run, "require_root", lambda _options: None)
    made = Machine(tmp_path)
    made.paths.platform_dir.mkdir()
    made.paths.run_dir.mkdir(mode=0o700)
    (made.paths.run_dir / "modules").symlink_to(packed_modules)
    # Dozens of processes after each failure; tests/unit/test_assumptions.py has the real ones.
    monkeypatch.setattr(assumptions, "probe", lambda _paths: list(FINDINGS))
    address = next(iter(sorted(a for a in own_addresses() if "." in a and not a.startswith("127."))), "127.0.0.1")
    others = [a for a in ("10.255.0.1", "10.255.0.2") if a != address]
    write(
        made.paths.platform_dir / "resource_config.json",
        {
            "ClusterConfig": {
                "ClusterName": "tiny",
                "ClusterArn": "arn:aws:sagemaker:us-west-2:111122223333:cluster/x",
            },
            "InstanceGroups": [
                group("head", others[0]),
                group("workers", address),
            ],
        },
    )
    write(
        made.paths.platform_dir / "provisioning_parameters.json",
        {
            "version": "1.0.0",
            "workload_manager": "slurm",
            "controller_group": "head",
            "worker_groups": [{"instance_group_name": "workers", "partition_name": "dev1"}],
        },
    )
    yield made
    processes.end(made.paths.run_dir, grace=0)


def group(name: str, address: str) -> dict[str, Any]:
    instance = {
        "InstanceName": f"{name}-1",
        "AgentIpAddress": "169.254.0.1",
        "CustomerIpAddress": address,
        "InstanceId": f"i-{name}",
    }
    return {"Name": name, "InstanceType": "ml.m5.large", "Instances": [instance]}


def write(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document), encoding="utf-8")


def statuses(report: Report) -> dict[str, str]:
    return {concern.name: concern.status for concern in report.concerns}


def ran(report: Report) -> set[str]:
    return {concern.name for concern in report.concerns if concern.ran}


# --- how a run can end ---


def test_only_root_may_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    report = run.apply(Options(), Progress(io.StringIO(), None), Machine(tmp_path).paths)
    assert report.exit_code == ExitCode.INPUT
    assert "hyperpod-lifecycle: must run as root; sudo hyperpod-lifecycle apply" in report.summary
    assert list(tmp_path.iterdir()) == []


def test_a_good_run(machine: Machine) -> None:
    report = machine.apply(
        PLATFORM
        + """
- name: paint
  hosts: compute
  gather_facts: false
  tags: [paint]
  tasks:
    - name: Write
      ansible.builtin.copy: {content: "{{ hyperpod_instance_name }}", dest: PLACE/painted, mode: "0644"}
    - name: Tell
      ansible.builtin.set_stats:
        data: {hyperpod_notes: {paint: two coats}}
        aggregate: true
        per_host: false
- name: books
  hosts: controller
  gather_facts: false
  tasks: [{name: Never here, ansible.builtin.fail: {}}]
""".replace("PLACE", str(machine.root))
    )
    assert report.summary.startswith(f"hyperpod-lifecycle: {NAME} (compute): ok: 2 concerns, 1 changed, ")
    assert report.summary.endswith("; paint: two coats")
    assert (machine.root / "painted").read_text() == NAME
    assert statuses(report) == {"platform": "ok", "paint": "ok"}
    assert [(task.concern, task.task) for task in report.changed_tasks] == [("paint", "Write")]
    assert report.changed_tasks[0].path.startswith(f"{machine.site}:")
    assert (report.exit_code, report.cluster, report.failed_tasks) == (ExitCode.OK, "tiny", [])
    assert read(machine.paths.report_file).to_json() == report.to_json()
    assert stat.S_IMODE(machine.paths.report_file.stat().st_mode) == 0o600
    log = machine.paths.log_file.read_text()
    assert "paint: ok: 1 changed, " in log
    assert log.rstrip().endswith(report.summary)


def test_a_failure_names_concern_task_reason_and_next_step(machine: Machine) -> None:
    report = machine.apply(
        PLATFORM
        + """
- name: paint
  hosts: compute
  gather_facts: false
  tasks:
    - name: Stir
      ansible.builtin.command: {cmd: "sh -c 'echo first >&2; echo the lid is stuck >&2; exit 3'"}
- name: frame
  hosts: compute
  gather_facts: false
  tasks: [{name: Cut, ansible.builtin.debug: {}}]
- name: books
  hosts: controller
  gather_facts: false
  tasks: [{name: Never here, ansible.builtin.fail: {}}]
"""
    )
    assert report.exit_code == ExitCode.FAILED
    assert report.summary == (
        f"hyperpod-lifecycle: {NAME} (compute): failed: paint: Stir: return code 3 | first | the lid is stuck; "
        f"next: fix the cause (log: {machine.paths.ansible_log}), then run it again: "
        "hyperpod-lifecycle apply --connection local"
    )
    assert statuses(report) == {"platform": "ok", "paint": "failed", "frame": "not_run"}
    (assumption,) = report.assumptions
    assert "a lid opens" in assumption
    log = machine.paths.log_file.read_text()
    assert "paint: failed: Stir: return code 3" in log
    assert log.index("paint: started") < log.index("paint: failed")
    transcript = machine.paths.ansible_log
    assert "the lid is stuck" in transcript.read_text()
    assert '"rc": 3' in transcript.read_text()
    assert stat.S_IMODE(transcript.stat().st_mode) == 0o600


def test_a_failure_in_a_loop_names_the_first_items_reason(machine: Machine) -> None:
    report = machine.apply(
        PLATFORM
        + """
- name: paint
  hosts: compute
  gather_facts: false
  tasks:
    - name: Stir
      ansible.builtin.fail: {msg: "{{ item }} is stuck"}
      loop: [the lid, the spoon]
"""
    )
    assert "failed: paint: Stir: the lid is stuck; next:" in report.summary


def test_a_rescued_failure_is_degraded_and_an_ignored_one_is_not(machine: Machine) -> None:
    report = machine.apply(
        PLATFORM
        + """
- name: radio
  hosts: compute
  gather_facts: false
  tasks:
    - block:
        - name: Tune
          ansible.builtin.fail: {msg: no signal}
      rescue: [{name: Go on, ansible.builtin.debug: {}}]
- name: paint
  hosts: compute
  gather_facts: false
  tasks: [{name: Shrug, ansible.builtin.fail: {msg: never mind}, ignore_errors: true}]
"""
    )
    assert statuses(report) == {"platform": "ok", "radio": "degraded", "paint": "ok"}
    assert (report.exit_code, report.status) == (ExitCode.OK, "degraded")
    assert "radio: Tune: no signal" in report.summary


def test_an_unreachable_node_is_a_failure(machine: Machine) -> None:
    report = machine.apply(
        PLATFORM
        + """
- name: paint
  hosts: compute
  gather_facts: false
  vars:
    ansible_connection: ssh
    ansible_host: 127.0.0.1
    ansible_port: 9
    ansible_ssh_timeout: 2
    ansible_control_path_dir: ROOT/ssh
  tasks: [{name: Call, ansible.builtin.ping: {}}]
""".replace("ROOT", str(machine.root))
    )
    assert (report.exit_code, statuses(report)["paint"]) == (ExitCode.FAILED, "failed")
    assert "paint: Call: unreachable: " in report.summary


@pytest.mark.parametrize(
    ("plays", "words"),
    [
        ("- name: paint\n  hosts: compute\n  tasks: [{no_such_module: {}}]\n", "no_such_module"),
        ("- name: paint\n  hosts: nobody\n  tasks: [{ansible.builtin.debug: {}}]\n", "configured no host"),
        ("- name: paint\n  hosts: [\n", "site.yml"),
        ("- hosts: localhost\n  gather_facts: false\n  tasks: [{ansible.builtin.debug: {}}]\n", "configured localhost"),
    ],
)
def test_ansible_that_does_nothing_here_has_failed(machine: Machine, plays: str, words: str) -> None:
    report = machine.apply(plays)
    assert report.exit_code == ExitCode.FAILED
    assert words in report.summary


def test_a_broken_inventory_fails_with_its_own_reason(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "NODE_PATHS", ())  # or it would not come as far as Ansible
    inventory = machine.root / "settings"
    inventory.mkdir()
    (inventory / "hyperpod.yml").write_text("plugin: hyperpod.lifecycle.hyperpod\npython_interpreter: {a: b}\n")
    report = machine.apply(PLATFORM, inventory=inventory)
    assert report.exit_code == ExitCode.FAILED
    assert re.search("failed: Ansible: .*python_interpreter", report.summary)
    assert "caused by" not in report.summary


# --- inputs ---


def test_wrong_input_changes_nothing_and_names_every_problem(machine: Machine) -> None:
    file = machine.paths.platform_dir / "provisioning_parameters.json"
    parameters = json.loads(file.read_text())
    write(file, {**parameters, "controller_group": "heads", "workload_manager": "pbs"})
    report = machine.apply(
        f"- hosts: all\n  tasks: [{{ansible.builtin.file: {{path: {machine.root}/x, state: touch}}}}]"
    )
    assert (report.exit_code, report.status) == (ExitCode.INPUT, "invalid")
    assert "(and 1 more, above)" in report.summary
    assert "heads" in machine.screen
    assert "pbs" in machine.screen
    assert not (machine.root / "x").exists()
    assert not machine.paths.etc_dir.exists()


def test_broken_yaml_of_the_user_is_named_with_its_place(machine: Machine) -> None:
    variables = machine.paths.inventory / "group_vars"
    variables.mkdir(parents=True)
    (variables / "all.yml").write_text("a: 1\nb: [\n")
    (variables / "compute.yml").write_text("secret: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  31\n")
    report = machine.apply(PLATFORM)
    assert report.exit_code == ExitCode.INPUT
    assert f"invalid: {variables}/all.yml: line 3 column 1: " in report.summary
    assert "compute.yml" not in machine.screen


@pytest.mark.once
def test_a_wrong_list_of_users_changes_nothing_and_a_right_one_is_the_roles_to_read(machine: Machine) -> None:
    machine.paths.inventory.mkdir(parents=True)
    users = machine.paths.etc_dir / "shared_users.txt"
    users.write_text("ada,2001\nbea,2001\n")
    play = PLATFORM + "    - {name: Same, ansible.builtin.assert: {that: hyperpod_users.0.name == 'ada'}}\n"
    report = machine.apply(play)
    assert report.exit_code == ExitCode.INPUT
    assert f"{users}: line 2: the uid 2001 again" in report.summary
    users.write_text("ada,2001\n")
    (machine.paths.etc_dir / "shared_users.yaml").touch()
    report = machine.apply(play)
    assert report.status == "ok", report.summary
    assert any("shared_users.yaml is not read" in note for note in report.notes)
    assert str(users) in report.inputs


@pytest.mark.once
def test_a_later_run_uses_the_kept_copies_and_says_so(machine: Machine) -> None:
    assert machine.apply(PLATFORM).status == "ok"
    for file in machine.paths.platform_dir.iterdir():
        file.unlink()
    report = machine.apply(PLATFORM)
    assert report.status == "ok"
    assert sum("used the copy" in note for note in report.notes) == 2
    for copy in machine.paths.etc_dir.iterdir():
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert stat.S_IMODE(machine.paths.etc_dir.stat().st_mode) == 0o700


@pytest.mark.once
def test_the_users_variables_apply_and_the_node_of_a_plan_does_not(machine: Machine) -> None:
    machine.paths.inventory.mkdir(parents=True)
    (machine.paths.inventory / "group_vars").mkdir()
    (machine.paths.inventory / "group_vars/compute.yml").write_text("colour: green\n")
    plays = PLATFORM + "    - {name: Same, ansible.builtin.assert: {that: colour == 'green', quiet: true}}\n"
    assert machine.apply(plays).status == "ok"
    (machine.paths.inventory / "hyperpod.yml").write_text("plugin: hyperpod.lifecycle.hyperpod\nnode: head-1\n")
    report = machine.apply(plays)
    assert report.exit_code == ExitCode.INPUT
    assert "found head-1, and this machine is workers-1" in report.summary


def test_settings_for_one_run_win_over_the_files_and_are_checked_like_them(machine: Machine) -> None:
    (machine.paths.inventory / "group_vars").mkdir(parents=True)
    (machine.paths.inventory / "group_vars/compute.yml").write_text("slurm_log_count: 5\nshown: true\n")
    plays = (
        PLATFORM
        + "    - {name: Same, ansible.builtin.assert: {that: not shown and slurm_log_count == 3, quiet: true}}\n"
    )
    wanted = {"shown": False, "slurm_log_count": 3}
    report = machine.apply(plays, extra_vars=wanted)
    assert report.status == "ok", report.summary
    report = machine.apply(PLATFORM, extra_vars={"slurm_log_siez": "1M"})
    assert report.exit_code == ExitCode.INPUT
    assert "-e or the inventory: slurm_log_siez: no role has this variable" in report.summary


def test_roles_get_what_was_checked(machine: Machine) -> None:
    (machine.paths.inventory / "group_vars").mkdir(parents=True)
    off = {"containers_enabled": "no", "accounting_enabled": "0", "controllers_enabled": "{{ 1 > 2 }}"}
    variables = {**off, "slurm_log_count": "{{ base + 1 }}", "slurm_log_size": 5, "base": 6}
    write(machine.paths.inventory / "group_vars/all.json", variables)
    plays = (
        PLATFORM
        + """
    - name: Same
      ansible.builtin.assert:
        that:
          - containers_enabled is false
          - accounting_enabled is false
          - controllers_enabled is false
          - slurm_log_count is integer
          - slurm_log_count == 7
          - slurm_log_size == '5'
        quiet: true
    - {name: Off, ansible.builtin.fail: {msg: it is on}, when: containers_enabled or accounting_enabled}
"""
    )
    report = machine.apply(plays)
    assert report.status == "ok", report.summary
    assert machine.apply(plays, extra_vars={**off, "slurm_log_count": "7"}).status == "ok"


@pytest.mark.once
def test_no_value_of_the_command_line_is_shown(machine: Machine) -> None:
    secrets = {"slurm_log_siez": "hunter2", "my_token": "hunter2", "slurm_log_count": 3}
    words = ("-e", "slurm_log_siez=…", "-e", "slurm_log_count=3")
    report = machine.apply(PLATFORM, extra_vars=secrets, extra_words=words, verbosity=1)
    assert report.exit_code == ExitCode.INPUT
    again = "run it again: hyperpod-lifecycle apply --connection local -e slurm_log_siez=… -e slurm_log_count=3"
    assert again in report.summary.replace("'", "")
    seen = machine.screen + report.to_json() + machine.paths.log_file.read_text()
    assert "hunter2" not in seen + machine.paths.lock_file.read_text()


def test_wrong_settings_are_wrong_input_and_stop_the_run_before_the_first_role(machine: Machine) -> None:
    variables = machine.paths.inventory / "group_vars"
    variables.mkdir(parents=True)
    (variables / "all.yml").write_text(
        "slurm_log_siez: 1M\nslurm_log_size: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  31\n"
    )
    (variables / "compute.yml").write_text("slurm_log_count: many\n")
    mark = machine.root / "mark"
    more = f"""
    - {{name: Change, ansible.builtin.file: {{path: {mark}, state: touch}}}}
"""
    report = machine.apply(PLATFORM + more)
    assert report.exit_code == ExitCode.INPUT
    assert (
        f"{variables}/all.yml: slurm_log_siez: no role has this variable; did you mean slurm_log_size?"
        in report.summary
    )
    assert "(and 2 more, above)" in report.summary
    assert f"{variables}/compute.yml: slurm_log_count: argument 'slurm_log_count' is of type" in machine.screen
    assert f"{variables}/all.yml: slurm_log_size: it cannot be rendered: " in machine.screen
    assert not mark.exists()


# --- tags and check mode ---

TWO = (
    PLATFORM
    + """
- name: paint
  hosts: compute
  gather_facts: false
  tags: [paint]
  tasks:
    - name: Spec
      ansible.builtin.validate_argument_spec: {argument_spec: {}}
      tags: [always]
    - {name: Look, ansible.builtin.set_fact: {seen: true}, tags: [install, verify]}
    - {name: Brush, ansible.builtin.debug: {}, changed_when: true, tags: [install]}
    - {name: Look again, ansible.builtin.assert: {that: seen}, tags: [verify]}
    - {name: Dry, ansible.builtin.debug: {}, tags: [verify]}
- name: frame
  hosts: compute
  gather_facts: false
  tags: [frame]
  tasks:
    - name: Spec
      ansible.builtin.validate_argument_spec: {argument_spec: {}}
      tags: [always]
    - {name: Cut, ansible.builtin.debug: {}, changed_when: true, tags: [install]}
    - {name: Burn, ansible.builtin.fail: {}, tags: [never, burn]}
"""
)


@pytest.mark.once
@pytest.mark.parametrize(
    ("options", "concerns", "changed"),
    [
        ({"tags": ("paint",)}, {"platform", "paint"}, 1),
        ({"tags": ("install",)}, {"platform", "paint", "frame"}, 2),
        ({"tags": ("verify",)}, {"platform", "paint"}, 0),
        ({"skip_tags": ("paint",)}, {"platform", "frame"}, 1),
        ({"tags": ("all",), "skip_tags": ("install",)}, {"platform", "paint"}, 0),
        # What looks for all phases is there for each of them.
        ({"skip_tags": ("install",)}, {"platform", "paint"}, 0),
        ({"skip_tags": ("verify", "frame")}, {"platform", "paint"}, 1),
        ({"tags": ("paint",), "skip_tags": ("install",)}, {"platform", "paint"}, 0),
        ({"tags": ("install", "verify"), "skip_tags": ("install",)}, {"platform", "paint"}, 0),
    ],
)
def test_tags_select_concerns_and_phases(
    machine: Machine, options: dict[str, Any], concerns: set[str], changed: int
) -> None:
    report = machine.apply(TWO, **options)
    assert (report.status, ran(report)) == ("ok", concerns)
    assert len(report.changed_tasks) == changed


def test_what_tags_leave_out_is_not_ok(machine: Machine) -> None:
    report = machine.apply(TWO, tags=("install",))
    assert statuses(report) == {"platform": "ok", "paint": "partial", "frame": "partial"}
    assert ": ok: 3 concerns, 2 changed, " in report.summary
    assert report.summary.endswith(" s, only --tags install")
    report = machine.apply(TWO, skip_tags=("verify", "frame"))
    assert statuses(report) == {"platform": "ok", "paint": "partial", "frame": "not_selected"}
    report = machine.apply(TWO.replace("changed_when: true", "failed_when: true", 1), tags=("paint",))
    assert statuses(report) == {"platform": "ok", "paint": "failed", "frame": "not_selected"}


@pytest.mark.once
def test_a_tag_that_nothing_has_is_an_error_that_names_the_known_ones(machine: Machine) -> None:
    report = machine.apply(TWO, tags=("pant", "frame"))
    assert report.exit_code == ExitCode.INPUT
    assert "no task has the tag 'pant'" in report.summary
    assert "burn, frame, install, never, paint" in report.summary
    assert report.concerns == []


@pytest.mark.once
@pytest.mark.parametrize(
    ("tags", "skip_tags", "reason"),
    [
        (("paint", "verify"), ("install",), "cannot drop a phase"),
        (("install",), ("install",), "no phase is left"),
        ((), ("install", "configure", "service", "verify"), "no phase is left"),
    ],
)
def test_phases_that_cannot_be_skipped_are_an_error(
    machine: Machine, tags: tuple[str, ...], skip_tags: tuple[str, ...], reason: str
) -> None:
    plays = TWO.replace("tags: [install]", "tags: [install, configure, service]")
    report = machine.apply(plays, tags=tags, skip_tags=skip_tags)
    assert (report.exit_code, report.concerns) == (ExitCode.INPUT, [])
    assert reason in report.summary


@pytest.mark.once
def test_tags_of_another_node_type_are_no_error_and_not_silent(machine: Machine) -> None:
    report = machine.apply(
        PLATFORM + "- name: books\n  hosts: controller\n  tags: [books]\n  tasks: [{ansible.builtin.debug: {}}]\n",
        tags=("books",),
    )
    assert (report.status, set(statuses(report))) == ("ok", {"platform"})
    assert report.summary.endswith("; no concern on this node matches these tags")


def test_check_leaves_no_trace(machine: Machine) -> None:
    plays = f"""{PLATFORM}
    - {{name: Write, ansible.builtin.copy: {{content: hello, dest: {machine.root}/x, mode: "0644"}}}}
"""
    (machine.paths.run_dir / "modules").unlink()
    report = machine.apply(plays, check=True, diff=True)
    assert "ok: check only, 1 concern, 1 would change" in report.summary
    assert "+hello" in machine.screen
    left = {path.name for path in machine.root.iterdir()}
    assert left == {"platform", "run", "site.yml"}
    assert machine.left() == {"lock"}


@pytest.mark.once
def test_verbose_adds_a_line_per_task_and_twice_ansibles_own(machine: Machine) -> None:
    machine.apply(PLATFORM)
    assert "Look" not in machine.screen
    machine.apply(PLATFORM, verbosity=1)
    assert "platform: Look: ok, 0." in machine.screen
    assert "PLAY [" not in machine.screen
    machine.apply(PLATFORM, verbosity=2)
    assert "PLAY [platform]" in machine.screen


# --- run it again ---


def test_run_it_again_repeats_every_option() -> None:
    given = {
        "tags": ("slurm", "verify"),
        "skip_tags": ("install",),
        "extra_vars": {"slurm_log_count": 3},
        "extra_words": ("-e", "slurm_log_count=3"),
        "check": True,
        "diff": True,
        "verbosity": 2,
        "connection": "local",
        "timeout": 90.5,
        "lock_wait": 5.0,
        "resource_config": Path("/a b/resource_config.json"),
        "provisioning_parameters": Path("/a/provisioning_parameters.json"),
        "inventory": Path("/a/inventory"),
        "json": True,
    }
    assert set(given) == {each.name for each in fields(Options)} - {"request"}
    assert Options().command == "hyperpod-lifecycle apply"
    words = shlex.split(Options(**given).command)
    text = " ".join(words[2:])
    assert words[:2] == ["hyperpod-lifecycle", "apply"]
    assert words[words.index("--resource-config") + 1] == "/a b/resource_config.json"
    for part in (
        *("--tags slurm", "--tags verify", "--skip-tags install", "-e slurm_log_count=3", "--check", "--diff", "-vv"),
        *("--connection local", "--timeout 90.5", "--lock-wait 5", "--inventory /a/inventory", "--json"),
        "--provisioning-parameters /a/provisioning_parameters.json",
    ):
        assert part in text


@pytest.mark.once
def test_run_it_again_names_no_file_that_a_run_finds_by_itself(machine: Machine) -> None:
    """on_create.sh names files in an upload folder, which may be gone by then."""
    upload = machine.root / "upload"
    upload.mkdir()
    config = machine.paths.platform_dir / "resource_config.json"
    parameters = (machine.paths.platform_dir / "provisioning_parameters.json").rename(upload / "parameters.json")
    broken = PLATFORM.replace("'compute'", "'login'")
    report = machine.apply(broken, resource_config=config, provisioning_parameters=parameters)
    assert report.remedy.endswith("run it again: hyperpod-lifecycle apply --connection local")
    other = machine.root / "other.json"
    write(other, {**json.loads(config.read_text()), "more": 1})
    report = machine.apply(broken, resource_config=other, provisioning_parameters=parameters)
    assert report.remedy.endswith(f"hyperpod-lifecycle apply --resource-config {other} --connection local")


# --- nothing is left behind ---


def test_no_value_stays_behind_and_none_of_the_environment_gets_in(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_TOKEN", "sentinel-environment")
    machine.paths.inventory.mkdir(parents=True)
    (machine.paths.inventory / "group_vars").mkdir()
    (machine.paths.inventory / "group_vars/all.yml").write_text("secret: sentinel-variable\n")
    report = machine.apply(
        PLATFORM
        + f"""
    - name: Use
      ansible.builtin.copy: {{content: "{{{{ secret }}}}", dest: {machine.root}/target, mode: "0600"}}
      no_log: true
      diff: false
    - {{name: See, ansible.builtin.command: env, register: seen}}
    - {{name: Same, ansible.builtin.assert: {{that: "'SOME_TOKEN' not in seen.stdout", quiet: true}}}}
    - name: Break
      ansible.builtin.command: {{cmd: "sh -c 'echo {{{{ secret }}}} >&2; exit 1'"}}
      no_log: true
""",
        verbosity=2,
    )
    assert report.exit_code == ExitCode.FAILED
    assert "platform: Break: its result is hidden (no_log)" in report.summary
    assert os.environ["SOME_TOKEN"] == "sentinel-environment"
    assert "sentinel" not in machine.screen + report.to_json()
    mine = {machine.paths.inventory / "group_vars/all.yml", machine.root / "target"}
    for path in machine.root.rglob("*"):
        if path.is_file() and path not in mine:
            assert b"sentinel" not in path.read_bytes(), path
    assert machine.left() == {"lock", "modules"}


# A child in a session of its own, as Ansible's workers make them, and one whose environment was emptied.
LINGER = (
    PLATFORM
    + """
    - name: Linger
      ansible.builtin.command: {cmd: "sh -c 'setsid sleep 300 & env -i sleep 300 & touch ROOT/started; sleep 300'"}
"""
)


LATER = "\n- name: frame\n  hosts: compute\n  gather_facts: false\n  tasks: [{name: Cut, ansible.builtin.debug: {}}]\n"


ONCE = pytest.mark.once


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=ONCE), pytest.param(signal.SIGHUP, marks=ONCE)]
)
def test_a_signal_ends_everything_at_once_and_says_so(machine: Machine, number: signal.Signals) -> None:
    started = machine.start(LINGER.replace("ROOT", str(machine.root)) + LATER)
    wait_for((machine.root / "started").exists)
    assert len(machine.marked()) >= 5  # ansible-playbook, a worker, the module, sh and the sleeps
    started.send_signal(number)
    output = started.communicate(timeout=60)[0]
    assert started.returncode == ExitCode.INTERRUPTED
    assert output.splitlines()[-1].startswith(
        f"hyperpod-lifecycle: {NAME} (compute): interrupted: platform: Linger: stopped by {number.name}; next: "
    )
    assert machine.marked() == []
    assert machine.left() == {"lock", "modules"}
    assert read(machine.paths.report_file).status == "interrupted"
    assert statuses(read(machine.paths.report_file)) == {"platform": "failed", "frame": "not_run"}


#: Counts how often a run looks for this machine's addresses.
LOOKS = """
from hyperpod_lifecycle import addresses
real = addresses.own_addresses
def counted():
    with open({!r}, "a") as file:
        file.write(".")
    return real()
addresses.own_addresses = counted
"""


def test_a_signal_before_the_first_task(machine: Machine) -> None:
    file = machine.paths.platform_dir / "resource_config.json"
    document = json.loads(file.read_text())
    document["InstanceGroups"][1]["Instances"][0]["CustomerIpAddress"] = "203.0.113.1"
    write(file, document)
    looks = machine.root / "looks"
    started = machine.start(PLATFORM, LOOKS.format(str(looks)))
    wait_for(lambda: looks.exists() and looks.stat().st_size > 1, "a second look for the address")
    started.terminate()
    output = started.communicate(timeout=20)[0]
    assert started.returncode == ExitCode.INTERRUPTED
    assert "interrupted: stopped by SIGTERM before the first task" in output.splitlines()[-1]


def test_the_time_limit_ends_everything(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    lingers = machine.root / "started"
    passed = SimpleNamespace(monotonic=lambda: time.monotonic() + (600 if lingers.exists() else 0))
    monkeypatch.setattr(ansible_run, "time", passed)
    report = machine.apply(LINGER.replace("ROOT", str(machine.root)) + LATER, timeout=600)
    assert (report.exit_code, report.status) == (ExitCode.TIMEOUT, "timeout")
    assert "platform: Linger: not finished after 600 s; next: " in report.summary
    assert statuses(report) == {"platform": "failed", "frame": "not_run"}
    assert machine.marked() == []


def test_a_killed_run_is_cleaned_up_by_the_next(machine: Machine) -> None:
    started = machine.start(LINGER.replace("ROOT", str(machine.root)))
    wait_for((machine.root / "started").exists)
    started.kill()
    started.wait()
    assert len(machine.marked()) >= 2
    assert len(list(machine.paths.run_dir.glob("run-*"))) == 1
    last = read(machine.paths.report_file)
    assert (last.status, last.exit_code, last.node, last.concerns) == ("unfinished", None, NAME, [])
    assert set(last.inputs) == {str(file) for file in machine.paths.platform_dir.iterdir()}
    report = machine.apply(PLATFORM, lock_wait=0)
    assert report.status == "ok"
    assert machine.marked() == []
    assert machine.left() == {"lock", "modules"}


def test_what_a_task_started_on_purpose_outlives_the_run_and_the_next_one_and_is_named(machine: Machine) -> None:
    leave = f"'sleep 300 >/dev/null 2>&1 & echo $! >{machine.root}/pid'"
    report = machine.apply(PLATFORM + f"    - {{name: Leave, ansible.builtin.shell: {leave}}}\n")
    pid = int((machine.root / "pid").read_text())
    try:
        assert (report.status, report.notes) == ("ok", [f"process {pid} (sleep 300) outlives the run that started it"])
        assert machine.left() == {"lock", "modules"}
        report = machine.apply(PLATFORM)
        assert (report.status, report.notes) == ("ok", [])
        assert Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\x00300\x00"
    finally:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("clean", [True, False])
def test_a_task_gets_sigterm_and_a_grace(machine: Machine, monkeypatch: pytest.MonkeyPatch, clean: bool) -> None:
    """A task that cleans up at SIGTERM can do so, and one that ignores it is killed when the grace has passed."""
    monkeypatch.setattr(processes, "GRACE_SECONDS", 10.0 if clean else 1.0)
    trap = f"trap 'trap \"\" TERM; sleep 1; touch {machine.root}/cleaned; exit' TERM" if clean else "trap '' TERM"
    script = machine.root / "task"
    # Who reads its output may end first, and dash says there what ended its sleep.
    script.write_text(f"exec 2>/dev/null\n{trap}\ntouch {machine.root}/started\nwhile :; do sleep 0.1; done\n")
    plays = PLATFORM + f"    - {{name: Work, ansible.builtin.command: sh {script}}}\n"
    stopped = threading.Thread(
        target=lambda: (wait_for((machine.root / "started").exists), os.kill(os.getpid(), signal.SIGTERM))
    )
    stopped.start()
    report = machine.apply(plays)
    stopped.join()
    assert (report.exit_code, (machine.root / "cleaned").exists()) == (ExitCode.INTERRUPTED, clean)
    assert machine.marked() == []


@pytest.mark.once
def test_a_second_run_says_who_holds_the_node(machine: Machine) -> None:
    started = machine.start(LINGER.replace("ROOT", str(machine.root)))
    wait_for((machine.root / "started").exists)
    report = machine.apply((machine.site).read_text(), lock_wait=0.5)
    assert (report.exit_code, report.status) == (ExitCode.LOCKED, "locked")
    assert f"another run holds this node: pid {started.pid} since 20" in report.summary
    assert "hyperpod-lifecycle apply --connection local; next:" in report.summary
    assert read(machine.paths.report_file).status == "unfinished", "that of the run in progress"
    assert len(machine.marked()) >= 5, "the run in progress goes on"
    started.terminate()
    started.communicate(timeout=20)


@pytest.mark.once
@pytest.mark.parametrize("folder", ["log", "run"])
def test_a_full_disk_is_named_and_is_no_internal_error(
    machine: Machine, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = machine.root / folder
    path.mkdir(exist_ok=True)
    if folder == "log":
        machine.paths.log_file.symlink_to("/dev/full")
    else:
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        monkeypatch.setattr(ansible_run, "write_private", Mock(side_effect=full))
    report = machine.apply(PLATFORM)
    assert "No space left on device" in report.summary
    assert str(path) in report.summary
    assert "a bug in" not in report.summary
    assert report.status == ("ok" if folder == "log" else "error")


def test_an_internal_error_has_its_traceback_in_the_log(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def defect(*_: Any) -> None:
        raise KeyError("broken")

    monkeypatch.setattr("hyperpod_lifecycle.events.Events._runner_on_ok", defect)
    report = machine.apply(PLATFORM)
    assert (report.exit_code, report.status) == (ExitCode.INTERNAL, "error")
    assert (
        "RuntimeError: KeyError: 'broken'; next: this is a bug in hyperpod-lifecycle; its traceback is in "
        in report.summary
    )
    assert "Traceback" in machine.paths.log_file.read_text()
    assert "Traceback" not in machine.screen
    assert read(machine.paths.report_file).status == "error"


def test_tasks_get_the_usual_umask_and_no_terminal_is_needed(machine: Machine) -> None:
    before = os.umask(0o077)
    try:
        report = machine.apply(PLATFORM + f"    - {{name: T, ansible.builtin.command: touch {machine.root}/x}}\n")
    finally:
        os.umask(before)
    assert report.status == "ok"
    assert stat.S_IMODE((machine.root / "x").stat().st_mode) == 0o644
