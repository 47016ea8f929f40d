# SPDX-License-Identifier: Apache-2.0
"""A concern that a node can do without: its failure is the node's only where the user says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FAILS = {
    "plain": {"ansible.builtin.fail": {"msg": "no signal"}},
    "loop": {"ansible.builtin.fail": {"msg": "{{ item }}"}, "loop": ["no signal", "nor this"]},
    "download": {
        "ansible.builtin.get_url": {"url": "file:///absent/no signal.deb", "dest": "/absent/x", "mode": "0644"}
    },
}


@pytest.mark.parametrize("required", ["yes", "no"])
@pytest.mark.parametrize("kind", FAILS)
def test_a_failed_concern_is_what_its_switch_says(
    ansible: Callable[..., Any], tmp_path: Path, kind: str, required: str
) -> None:
    tune = {"name": "Tune", **FAILS[kind]}
    verdict = {"name": "Decide", "hyperpod.lifecycle.verdict": {"required": "{{ required }}"}}
    play = {"hosts": "localhost", "gather_facts": False, "tasks": [{"block": [tune], "rescue": [verdict]}]}
    (tmp_path / "play.yml").write_text(json.dumps([play]))
    done = ansible("ansible-playbook", "-i", "localhost,", "-c", "local", "-e", f"required={required}", "play.yml")
    said = done.stdout + done.stderr
    assert (done.returncode != 0) == (required == "yes"), said
    assert ("Tune: " in said) == (required == "yes"), said
    assert "no signal" in said
    assert "rescued=1" in said or required == "yes"


def test_a_declared_verdict_is_a_fact_for_the_roles_after_it(ansible: Callable[..., Any], tmp_path: Path) -> None:
    verdict = "hyperpod.lifecycle.verdict"
    for role, declared in {"disk": {"status": "blocked", "reason": "full"}, "homes": {"status": "ok"}}.items():
        (tmp_path / f"roles/{role}/tasks").mkdir(parents=True)
        tasks = [{"name": "Declare", verdict: declared}]
        (tmp_path / f"roles/{role}/tasks/main.yml").write_text(json.dumps(tasks))
    show = {"name": "Show", "ansible.builtin.debug": {"msg": "{{ ansible_facts.verdicts | to_json(sort_keys=true) }}"}}
    bad = {"name": "Wrong", verdict: {"status": "blocked"}, "ignore_errors": True}
    first = {"hosts": "localhost", "gather_facts": False, "roles": ["disk"]}
    second = {"hosts": "localhost", "gather_facts": False, "roles": ["homes"], "post_tasks": [show, bad]}
    (tmp_path / "play.yml").write_text(json.dumps([first, second]))
    done = ansible("ansible-playbook", "-i", "localhost,", "-c", "local", "play.yml")
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    shown = said.replace("\\", "")
    assert '"disk": {"reason": "full", "status": "blocked"}, "homes": {"reason": "", "status": "ok"}' in shown, said
    assert "with a reason unless ok" in said
