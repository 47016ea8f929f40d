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
