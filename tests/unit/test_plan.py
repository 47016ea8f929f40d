# SPDX-License-Identifier: Apache-2.0
"""The plan is what Ansible says, not a second list."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import BASELINE, ROOT

from hyperpod_lifecycle import plan
from hyperpod_lifecycle.cluster import Node, load
from hyperpod_lifecycle.environment import clean_environment
from hyperpod_lifecycle.errors import InputError
from hyperpod_lifecycle.question import PROGRAM, SITE, Answer, ask


def node(name: str) -> Node:
    return load(BASELINE / "resource_config.json", BASELINE / "provisioning_parameters.json").node_by_name(name)


def make(name: str, inventory: Path, collections: Path | None = None) -> plan.Plan:
    private = Path(tempfile.mkdtemp(dir=inventory.parent))
    return plan.make(node(name), ask(SITE, inventory, private, clean_environment(private, collections, "local")))


@pytest.fixture
def collections(tmp_path: Path) -> Path:
    """The collection with two further concerns: one for controllers, one switched off."""
    path = tmp_path / "collections/ansible_collections/hyperpod/lifecycle"
    shutil.copytree(ROOT / "collection", path)
    shutil.copytree(ROOT / "inventory_plugins", path / "plugins/inventory")
    site = yaml.safe_load((path / "playbooks/site.yml").read_text())
    for concern, hosts in (("books", ["controller"]), ("lights", ["compute"])):
        role = path / "roles" / concern
        for folder in ("tasks", "defaults"):
            (role / folder).mkdir(parents=True)
        (role / "tasks/main.yml").write_text("---\n[]\n")
        (role / "defaults/main.yml").write_text(
            '---\nlights_enabled: "{{ 1 > 2 }}"\n' if concern == "lights" else "---\n{}\n"
        )
        play = {"name": concern, "hosts": hosts, "gather_facts": False, "roles": [f"hyperpod.lifecycle.{concern}"]}
        (path / f"playbooks/{concern}.yml").write_text(yaml.safe_dump([play]))
        site.append({"ansible.builtin.import_playbook": f"hyperpod.lifecycle.{concern}"})
    (path / "playbooks/site.yml").write_text(yaml.safe_dump(site))
    return tmp_path / "collections"


@pytest.mark.parametrize(
    ("name", "node_type"), [("brain-1", "controller"), ("door-1", "login"), ("muscle-2", "compute")]
)
def test_plan_of_each_node_type(source: Callable[..., Path], name: str, node_type: str) -> None:
    made = make(name, source(node=name))
    assert (made.node, made.node_type, made.cluster) == (name, node_type, "otter")
    site = yaml.safe_load((ROOT / "collection/playbooks/site.yml").read_text())
    order = [item["ansible.builtin.import_playbook"].rpartition(".")[2] for item in site]
    assert [concern.name for concern in made.concerns] == order
    left_out = {concern.name for concern in made.concerns if not concern.runs}
    for_others = {name for name in order if node_type not in read_play(name)["hosts"]}
    assert for_others <= left_out
    assert "observability" in left_out, "metrics need a URL"
    assert "slurm" not in left_out


def read_play(name: str) -> dict[str, Any]:
    (play,) = yaml.safe_load((ROOT / f"collection/playbooks/{name}.yml").read_text())
    return dict(play)


def test_plan_says_why_a_concern_does_not_run(source: Callable[..., Path], collections: Path) -> None:
    made = make("muscle-2", source(node="muscle-2"), collections).to_dict()
    concerns = {concern["name"]: concern for concern in made["concerns"]}
    assert list(concerns)[-2:] == ["books", "lights"]
    assert not concerns["books"]["runs"]
    assert concerns["books"]["reason"] == "controller only"
    assert not concerns["lights"]["runs"]
    assert concerns["lights"]["reason"] == "lights_enabled is false"
    assert concerns["slurm"]["runs"]


def test_plan_refuses_a_mistyped_setting(source: Callable[..., Path], tmp_path: Path) -> None:
    path = source(node="muscle-2")
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars/compute.yml").write_text("slurm_log_siez: 10M\n")
    with pytest.raises(InputError, match="slurm_log_siez.*did you mean slurm_log_size"):
        make("muscle-2", path)


@pytest.mark.parametrize(("value", "runs"), [("'no'", False), ("'yes'", True), ("'{{ 1 > 2 }}'", False), ("0", False)])
def test_a_switch_means_for_the_plan_what_it_means_for_the_roles(
    source: Callable[..., Path], tmp_path: Path, value: str, runs: bool
) -> None:
    path = source(node="muscle-2")
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars/compute.yml").write_text(f"containers_enabled: {value}\n")
    (containers,) = [concern for concern in make("muscle-2", path).concerns if concern.name == "containers"]
    assert containers.runs is runs


def test_nothing_of_the_callers_environment_reaches_the_plan(
    source: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANSIBLE_DEBUG", "1")
    monkeypatch.setenv("PYTHONPATH", "/no/such/place")
    monkeypatch.setenv("ANSIBLE_COLLECTIONS_PATH", "/no/such/place")
    assert make("muscle-2", source(node="muscle-2")).node == "muscle-2"


def test_the_playbook_runs_in_the_process_that_has_answered(
    ansible: Callable[..., Any], source: Callable[..., Path], tmp_path: Path
) -> None:
    arguments = [tmp_path / "answer.json", "", "-i", source(node="brain-1"), "--check", "--tags", "platform", SITE]
    done = ansible(*PROGRAM, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    roles = {play.name for play in Answer.read(tmp_path / "answer.json").plays if play.matches}
    assert roles == set(re.findall(r"PLAY \[(\w+)\]", done.stdout))
    assert "failed=0" in done.stdout, "each role's argument spec was checked"


def test_plan_passes_on_what_ansible_says(source: Callable[..., Path]) -> None:
    with pytest.raises(InputError, match="the following are known|choices|connection"):
        make("muscle-2", source(node="muscle-2", connection="telepathy"))
