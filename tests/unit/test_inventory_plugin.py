# SPDX-License-Identifier: Apache-2.0
"""The inventory plugin through Ansible's own programs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import BASELINE, CASES, ROOT

from hyperpod_lifecycle import addresses
from hyperpod_lifecycle.cluster import load
from hyperpod_lifecycle.inventory import host_variables, safe_names
from hyperpod_lifecycle.users import User


def read(ansible: Callable[..., Any], source: Path) -> dict[str, Any]:
    done = ansible("ansible-inventory", "-i", source, "--list", "--export")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def plain(value: Any) -> Any:
    """Newer cores wrap data that is no template when they print it."""
    if isinstance(value, dict):
        return value["__ansible_unsafe"] if "__ansible_unsafe" in value else {k: plain(v) for k, v in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def test_node_is_in_the_groups_of_its_type_group_partition_and_instance_type(
    ansible: Callable[..., Any], source: Callable[..., Path]
) -> None:
    done = ansible("ansible-inventory", "-i", source(node="muscle-2"), "--graph")
    assert done.returncode == 0, done.stderr
    for group in ("hyperpod", "compute", "instance_group_muscle", "partition_train", "instance_type_ml_g5_8xlarge"):
        assert f"@{group}:\n  |  |--muscle-2" in done.stdout
    assert "@controller:\n  |--@login:\n" in done.stdout, "the other node types exist and are empty"


def test_variables_are_the_contract_that_the_platform_role_documents() -> None:
    cluster = load(BASELINE / "resource_config.json", BASELINE / "provisioning_parameters.json")
    spec = yaml.safe_load((ROOT / "collection/roles/platform/meta/argument_specs.yml").read_text())
    options = spec["argument_specs"]["main"]["options"]
    variables = host_variables(cluster.node_by_name("muscle-2"), [User("ada", 2001, "", "")])
    assert set(variables) == set(options)
    assert set(variables["hyperpod_users"][0]) == set(options["hyperpod_users"]["options"])
    types = {"str": str, "path": str, "int": int, "list": list, "dict": dict}
    for name, value in variables.items():
        assert isinstance(value, types[options[name]["type"]]), name


def test_variables_of_a_node(ansible: Callable[..., Any], source: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    shutil.copy(BASELINE / "resource_config.json", tmp_path / "there")
    # A relative path starts at the source, which is not in the working directory.
    moved = source(node="muscle-2", resource_config="resource_config.json").rename(tmp_path / "there/hyperpod.yml")
    variables = plain(read(ansible, moved)["_meta"]["hostvars"]["muscle-2"])
    assert variables["hyperpod_node_type"] == "compute"
    assert variables["hyperpod_address"] == "10.20.1.100"
    assert variables["hyperpod_controller_addresses"] == ["10.20.0.5"]
    assert variables["hyperpod_login_addresses"] == ["10.20.0.6"]
    assert variables["hyperpod_partitions"] == ["train"]
    assert variables["hyperpod_region"] == "us-west-2"
    assert variables["ansible_connection"] == "local"


def test_all_members_are_reached_by_ssh_but_this_node(ansible: Callable[..., Any], source: Callable[..., Path]) -> None:
    hosts = plain(read(ansible, source(node="brain-1", all_members=True))["_meta"]["hostvars"])
    assert set(hosts) == {"brain-1", "door-1", "muscle-1", "muscle-2"}
    assert hosts["muscle-2"]["ansible_host"] == "10.20.1.100"
    assert "ansible_connection" not in hosts["muscle-2"]
    assert hosts["muscle-2"]["hyperpod_node_type"] == "compute"
    assert "ansible_host" not in hosts["brain-1"]
    assert hosts["brain-1"]["ansible_connection"] == "local"


def test_this_node_is_the_one_with_an_address_of_this_machine(
    ansible: Callable[..., Any], source: Callable[..., Path], pair: Callable[..., tuple[Path, Path]]
) -> None:
    own = next(a for a in sorted(addresses.own_addresses()) if "." in a and not a.startswith("127."))
    document = json.loads((BASELINE / "resource_config.json").read_text())
    document["InstanceGroups"][1]["Instances"][0]["CustomerIpAddress"] = own
    config, parameters = pair(document, json.loads((BASELINE / "provisioning_parameters.json").read_text()))
    found = read(ansible, source(resource_config=str(config), provisioning_parameters=str(parameters)))
    assert found["login"]["hosts"] == ["door-1"]


def test_users_come_from_a_folder_or_a_file(
    ansible: Callable[..., Any], source: Callable[..., Path], tmp_path: Path
) -> None:
    def users(where: Path) -> Any:
        return plain(read(ansible, source(node="brain-1", shared_users=str(where)))["_meta"]["hostvars"]["brain-1"])[
            "hyperpod_users"
        ]

    ada = {"name": "ada", "uid": 2001, "home": "/fsx/ada", "slurm_account": ""}
    bea = {"name": "bea", "uid": 2002, "home": "/fsx/bea", "slurm_account": ""}
    assert users(tmp_path) == []
    (tmp_path / "shared_users.txt").write_text("ada,2001,/fsx/ada\r\n")
    assert users(tmp_path) == [ada]
    assert users(CASES / "14-shared_users-flat.yaml") == [ada, bea]


INJECTION = "{{lookup('pipe','id')}}"


def test_values_from_the_files_are_never_templates(
    ansible: Callable[..., Any], source: Callable[..., Path], pair: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    document = json.loads((BASELINE / "resource_config.json").read_text())
    document["ClusterConfig"]["ClusterArn"] = INJECTION
    parameters = json.loads((BASELINE / "provisioning_parameters.json").read_text())
    parameters["slurm_configurations"] = {"slurm_database_user": INJECTION}
    config, parameters_path = pair(document, parameters)
    inventory = source(node="brain-1", resource_config=str(config), provisioning_parameters=str(parameters_path))
    playbook = tmp_path / "play.yml"
    tasks = [
        {"ansible.builtin.debug": {"msg": "arn={{ hyperpod_cluster_arn }}"}},
        {"ansible.builtin.debug": {"msg": "user={{ hyperpod_slurm_configurations.slurm_database_user }}"}},
    ]
    playbook.write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    done = ansible("ansible-playbook", "-i", inventory, playbook)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"arn={INJECTION}" in done.stdout
    assert f"user={INJECTION}" in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resource_config": "/nonexistent.json"}, "/nonexistent.json"),
        ({"node": "muscle-3"}, "muscle-2"),
        ({"nod": "muscle-1"}, "unknown option nod"),
        ({"shared_users": "/nonexistent.txt"}, "/nonexistent.txt: the file does not exist"),
        ({"connection": "ssh"}, "ssh"),
    ],
)
@pytest.mark.parametrize("program", [pytest.param("ansible-inventory", marks=pytest.mark.once), "ansible-playbook"])
def test_a_source_that_cannot_be_read_fails_the_run(
    ansible: Callable[..., Any], source: Callable[..., Path], program: str, options: dict[str, str], message: str
) -> None:
    arguments = ["--list"] if program == "ansible-inventory" else ["hyperpod.lifecycle.site"]
    done = ansible(program, "-i", source(**options), *arguments)
    assert done.returncode != 0
    assert message in done.stderr


def test_plain_ansible_playbook_runs_the_site_playbook(
    ansible: Callable[..., Any], source: Callable[..., Path]
) -> None:
    done = ansible("ansible-playbook", "-i", source(node="door-1"), "hyperpod.lifecycle.site", "--list-hosts")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("door-1") >= 2


def test_safe_names_keep_different_names_apart() -> None:
    names = safe_names("partition", ["a-b", "a.b", "c", "1-x"])
    assert names["c"] == "partition_c"
    assert names["1-x"] == "partition_1_x"
    assert len(set(names.values())) == 4
    assert all(name.replace("_", "").isalnum() for name in names.values())
    assert safe_names("partition", ["a.b", "x", "a-b"])["a-b"] == names["a-b"], "order does not matter"


def test_what_the_image_is_like_is_set_in_the_source_alone(
    ansible: Callable[..., Any], source: Callable[..., Path]
) -> None:
    path = source(node="muscle-2", slurm_prefix="/srv/slurm", slurm_controller_port=7000, architecture="arm64")
    done = ansible("ansible-inventory", "-i", path, "--host", "muscle-2")
    found = plain(json.loads(done.stdout))
    assert found["hyperpod_slurm_prefix"] == "/srv/slurm"
    assert found["hyperpod_slurm_config_dir"] == "/srv/slurm/etc"
    assert found["hyperpod_slurm_controller_port"] == 7000
    assert found["hyperpod_architecture"] == "arm64"
    for file in (ROOT / "collection").glob("*/**/*.yml"):
        if "playbooks" in file.parts or "defaults" in file.parts:
            assert "/opt/slurm" not in file.read_text(), f"{file} repeats what the contract says"
