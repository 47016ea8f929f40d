# SPDX-License-Identifier: Apache-2.0
"""What roles say of a node before they run: it is in the plan, and what cannot work is an error before any task."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import BASELINE, CASES

from hyperpod_lifecycle import plan
from hyperpod_lifecycle.cluster import load
from hyperpod_lifecycle.environment import clean_environment
from hyperpod_lifecycle.errors import InputError, Problem
from hyperpod_lifecycle.question import SITE, ask

Source = Callable[..., Path]
NAME_OVER_40 = CASES / "field-2/09-cluster-name-over-40"


@pytest.fixture
def make(source: Source, tmp_path: Path) -> Callable[..., plan.Plan]:
    """Plan a node of the baseline, or of a pair of files, with settings for all nodes."""

    def of(node: str, pair: Path = BASELINE, shared_users: str = "/nonexistent", **settings: Any) -> plan.Plan:
        (tmp_path / "group_vars").mkdir(exist_ok=True)
        (tmp_path / "group_vars/all.yml").write_text(yaml.safe_dump(settings))
        files = pair / "resource_config.json", pair / "provisioning_parameters.json"
        options = dict(zip(("resource_config", "provisioning_parameters"), map(str, files), strict=True))
        inventory = source(node=node, shared_users=shared_users, **options)
        private = Path(tempfile.mkdtemp(dir=tmp_path))
        answer = ask(SITE, inventory, private, clean_environment(private, None, "local"))
        return plan.make(load(*files).node_by_name(node), answer)

    return of


def problems(make: Callable[..., plan.Plan], *args: Any, **settings: Any) -> list[Problem]:
    with pytest.raises(InputError) as caught:
        make(*args, **settings)
    return list(caught.value.problems)


def test_a_plan_shows_storage_homes_users_and_the_database(make: Callable[..., plan.Plan], tmp_path: Path) -> None:
    (tmp_path / "shared_users.txt").write_text("ada,2001,/fsx/team-a/ada\n")
    shows = make("muscle-1", shared_users=str(tmp_path / "shared_users.txt")).shows
    assert shows["users"] == [
        {"name": "ubuntu"},
        {"name": "ada", "uid": 2001, "home": "/fsx/team-a/ada", "slurm_account": ""},
    ]
    assert "accounting_database" not in shows
    shows = make("brain-1", accounting_external_host="db.example.com", accounting_external_password_file="/x").shows
    (lustre,) = shows["file_systems"]
    assert (lustre["kind"], lustre["mount_name"], lustre["mount_path"]) == ("lustre", "q7x2nbev", "/fsx")
    assert shows["homes"] == "/fsx/<user>"
    assert shows["users"] == [{"name": "ubuntu"}]
    assert shows["accounting_database"] == "slurm_acct_db, db.example.com:3306"


def test_field_2_09_a_name_that_accounting_cannot_hold(make: Callable[..., plan.Plan]) -> None:
    (found,) = problems(make, "brain-1", NAME_OVER_40)
    assert (found.file, found.key) == ("resource_config.json", "ClusterConfig.ClusterName")
    assert "has 51 characters" in found.found
    assert "hold 40" in found.found
    assert make("brain-1", NAME_OVER_40, accounting_enabled=False).cluster.startswith("foundation-model-")
    assert make("muscle-1", NAME_OVER_40).node_type == "compute"


def test_what_roles_would_find_out_on_the_node(
    make: Callable[..., plan.Plan], pair: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    config = json.loads((BASELINE / "resource_config.json").read_text())
    config["InstanceGroups"][0]["Instances"].append({"InstanceName": "brain-2", "CustomerIpAddress": "10.20.0.7"})
    pair(config, json.loads((BASELINE / "provisioning_parameters.json").read_text()))
    twice = {"kind": "openzfs", "dns_name": "fs-1.example.com", "mount_path": "/fsx"}
    found = problems(
        make,
        "brain-1",
        tmp_path,
        fsx_more_file_systems=[twice],
        accounting_slurmdbd_settings={"StoragePass": "x", "DebugLevel": "debug2"},
    )
    keys = {
        "slurm_configurations.slurm_database_endpoint": "2 controllers, and no external database",
        "accounting_slurmdbd_settings": "the database's password",
        "slurm_configurations.slurm_shared_directory": "2 controllers need a directory",
        "fsx_more_file_systems": "two file systems are to be mounted at one path",
    }
    assert {problem.key for problem in found} == set(keys)
    assert len(found) == len(keys) + 1, "both of slurmdbd's settings"
    assert all(keys[problem.key] in problem.found for problem in found)
    of_settings = {problem.key for problem in found if problem.file.endswith("group_vars/all.yml")}
    assert of_settings == set(keys) - {key for key in keys if key.startswith("slurm_")}


def test_field_2_12_a_shared_directory_that_is_no_mount(
    make: Callable[..., plan.Plan], pair: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    case = CASES / "field-2/12-values-read-but-not-checked"
    config, parameters = (
        json.loads((case / name).read_text()) for name in ("resource_config.json", "provisioning_parameters.json")
    )
    parameters["slurm_configurations"] = {
        "slurm_database_endpoint": "acct.cluster-c0ffee.us-west-2.rds.amazonaws.com",
        "slurm_database_secret_arn": "arn:aws:secretsmanager:us-west-2:111122223333:secret:slurm-db-password",
        "slurm_shared_directory": "/shared/slurm",
    }
    pair(config, parameters)
    (found,) = problems(make, "brain-2", tmp_path)
    assert found.key == "slurm_configurations.slurm_shared_directory"
    assert "/shared/slurm is on no file system" in found.found
    assert "(/fsx)" in found.remedy
    more = {"kind": "openzfs", "dns_name": "fs-1.example.com", "mount_path": "/shared"}
    assert make("brain-2", tmp_path, fsx_more_file_systems=[more]).node_type == "controller"
    assert make("brain-2", tmp_path, controllers_trust_shared_dir=True).node_type == "controller"
