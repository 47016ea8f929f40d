# SPDX-License-Identifier: Apache-2.0
"""What a user may get wrong in the inventory folder is told by file before Ansible is asked."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from conftest import BASELINE, ROOT

from hyperpod_lifecycle import inputs
from hyperpod_lifecycle.cluster import load
from hyperpod_lifecycle.errors import InputError
from hyperpod_lifecycle.in_ansible.answer import check_settings
from hyperpod_lifecycle.paths import Paths
from hyperpod_lifecycle.variable_files import variable_files

PLUGIN = "plugin: hyperpod.lifecycle.hyperpod\n"


def resolve(folder: Path, **files: str) -> inputs.Inputs:
    for name, text in {"hyperpod.yml": PLUGIN, **files}.items():
        path = folder / "inventory" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return inputs.resolve(Paths(*(folder / name for name in "abcd")), inventory=folder / "inventory")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("hyperpod.yml", PLUGIN + "resorce_config: /x\n", 'resorce_config: .*did you mean "resource_config"'),
        ("hyperpod.yml", PLUGIN + "connection: telepathy\n", "connection: found 'telepathy'; it must be one of"),
        ("hyperpod.yml", PLUGIN + "slurm_controller_port: yes\n", "slurm_controller_port: .*it must be a whole number"),
        ("hyperpod.yml", PLUGIN + "slurm_prefix: 7\n", "slurm_prefix: found 7; it must be a string"),
        (
            "hyperpod.yml",
            PLUGIN + "slurm_prefix: opt/slurm\n",
            "slurm_prefix: found 'opt/slurm'; it must be an absolute",
        ),
        ("hyperpod.yml", PLUGIN + "architecture: x86_64\n", "architecture: found 'x86_64'; it must be one of"),
        ("hyperpod.yml", PLUGIN + "node: !vault x\n", "line 2: could not determine a constructor"),
        ("hyperpod.yml", PLUGIN + "? [a]\n: b\n", "line 2 column 3: found unhashable key"),
        ("group_vars/all.yml", "- a\n", "does not contain variables"),
        ("group_vars/all.yml", "some text\n", "does not contain variables"),
        ("group_vars/all.yml", "$ANSIBLE_VAULT;1.1;AES256\n6231\n", "encrypted with ansible-vault"),
        (
            "hyperpod.yml",
            PLUGIN + "node: 2026-13-45\n",
            "line 2 column 7: 2026-13-45 is an invalid timestamp",
        ),
        ("group_vars/all.yml", "a: {b: [2026-02-30]}\n", "2026-02-30 is an invalid timestamp"),
        ("group_vars/all.yml", "a:\n  b: 1\n  b: 2\n", "line 3: b: duplicate key, first on line 2"),
        ("group_vars/all.yml", "a: " + "[" * 5000, "(nested too deeply|line 1 column)"),
        ("group_vars/all.yml", "a: 1\nb: 2\na: 3\n", "all.yml: line 3: a: duplicate key, first on line 1"),
        ("host_vars/x.yml", "hyperpod_node_type: compute\n", "hyperpod_node_type: read-only: set by HyperPod's files"),
    ],
)
def test_a_fault_names_its_file(tmp_path: Path, name: str, text: str, expected: str) -> None:
    with pytest.raises(InputError, match=f"/inventory/{name}: .*{expected}" if expected[0] != "a" else expected):
        resolve(tmp_path, **{name: text})


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "a: !vault |\n  x\nb: !unsafe '{{ c }}'\n"])
def test_what_ansible_takes_is_taken(tmp_path: Path, text: str) -> None:
    resolve(tmp_path, **{"group_vars/all.yml": text})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("group_vars/controllers.yml", 'no group is named "controllers"; did you mean "controller"'),
        ("group_vars/instance_group_muscle-.yml", 'did you mean "instance_group_muscle"'),
        ("group_vars/muscle/a.yml", 'no group is named "muscle"'),
    ],
)
def test_variables_for_no_group_are_an_error(tmp_path: Path, name: str, expected: str) -> None:
    cluster = load(BASELINE / "resource_config.json", BASELINE / "provisioning_parameters.json")
    with pytest.raises(InputError, match=expected):
        list(resolve(tmp_path, **{name: "a: 1\n"}).check_names(cluster))


def test_variables_for_a_group_or_host_of_another_cluster_are_a_note(tmp_path: Path) -> None:
    cluster = load(BASELINE / "resource_config.json", BASELINE / "provisioning_parameters.json")
    good = ("all.yml", "compute", "hyperpod.yaml", "instance_group_muscle/x.yml", "instance_type_ml_c5_xlarge.json")
    other = ("group_vars/instance_group_nerve.yml", "host_vars/nerve-1.yml")
    files = {f"group_vars/{name}": "{}\n" for name in good} | dict.fromkeys(other, "{}\n")
    notes = list(resolve(tmp_path, **files, **{"host_vars/muscle-1.yml": "{}\n"}).check_names(cluster))
    assert [note.partition(": ")[0] for note in notes] == [str(tmp_path / "inventory" / name) for name in other]


def test_the_options_are_those_of_the_plugin() -> None:
    text = (ROOT / "inventory_plugins/hyperpod.py").read_text()
    documented = yaml.safe_load(text.split('DOCUMENTATION = r"""')[1].split('"""')[0])["options"]
    assert set(inputs.OPTIONS) == set(documented)
    assert set(inputs.CONNECTIONS.values()) == set(documented["connection"]["choices"])


def test_an_old_copy_of_the_parameters_is_not_taken_for_a_file_that_is_named_alone(tmp_path: Path) -> None:
    paths = Paths(*(tmp_path / name for name in "abcd"))
    paths.etc_dir.mkdir()
    copy = paths.etc_dir / "provisioning_parameters.json"
    copy.write_text("{}")
    config = BASELINE / "resource_config.json"
    assert inputs.resolve(paths).provisioning_parameters == copy
    found = inputs.resolve(paths, resource_config=config)
    assert found.provisioning_parameters is None
    found.keep(paths)
    assert not copy.exists()
    assert (paths.etc_dir / "resource_config.json").read_bytes() == config.read_bytes()


def test_a_relative_inventory_is_guarded_like_an_absolute_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine/host_vars").mkdir(parents=True)
    (tmp_path / "mine/host_vars/muscle-1.yml").write_text("hyperpod_node_type: login\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="hyperpod_node_type: read-only"):
        inputs.resolve(Paths(*(tmp_path / name for name in "abcd")), inventory=Path("mine"))


def test_relative_paths_in_the_inventory_start_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    names = {"resource_config": "r.json", "provisioning_parameters": "../p.json", "shared_users": "users.txt"}
    text = PLUGIN + yaml.safe_dump(names)
    found = resolve(tmp_path, **{"hyperpod.yml": text, "r.json": "{}", "../p.json": "{}"})
    given = [found.resource_config, found.provisioning_parameters, found.shared_users]
    assert given == [tmp_path / "inventory" / name for name in names.values()]


def test_every_path_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    for name in ("r.json", "p.json"):
        (tmp_path / name).write_text("{}")
    monkeypatch.chdir(tmp_path)
    paths = Paths(*(tmp_path / name for name in "abcd"))
    found = inputs.resolve(paths, Path("r.json"), Path("p.json"), Path("mine"))
    for path in (found.resource_config, found.provisioning_parameters, found.inventory, found.shared_users):
        assert path
        assert path.is_absolute()


@pytest.mark.parametrize(
    "name", ["compute", "hyperpod", "all", "localhost", "instance_group_muscle", "partition_train"]
)
def test_an_instance_with_the_name_of_a_group_is_an_error(tmp_path: Path, name: str) -> None:
    document = json.loads((BASELINE / "resource_config.json").read_text())
    muscle = next(group for group in document["InstanceGroups"] if group["Name"] == "muscle")
    muscle["Instances"][0]["InstanceName"] = name
    config = tmp_path / "resource_config.json"
    config.write_text(json.dumps(document))
    cluster = load(config, BASELINE / "provisioning_parameters.json")
    with pytest.raises(InputError, match=f"{config}: InstanceName: found {name}, which is a group of Ansible's"):
        list(resolve(tmp_path).check_names(cluster))


@pytest.mark.parametrize("text", ["", "# a: 1\n", "---\n# a: 1\n", "null\n"])
def test_a_file_may_set_nothing(tmp_path: Path, text: str) -> None:
    resolve(tmp_path, **{"group_vars/all.yml": text})


def test_hidden_files_are_ignored_as_ansible_does(tmp_path: Path) -> None:
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars/.DS_Store").write_bytes(b"\0\1Bud1")
    assert variable_files(tmp_path) == []


@pytest.mark.parametrize("value", ["!!bool hunter2", '!!int ""', "!!timestamp a"])
def test_a_value_that_yaml_cannot_make_is_a_problem_of_the_file(tmp_path: Path, value: str) -> None:
    with pytest.raises(InputError, match=r"all\.yml"):
        resolve(tmp_path, **{"group_vars/all.yml": f"slurm_log_size: {value}\n"})


def test_the_settings_to_uncomment_are_valid() -> None:
    settings: dict[str, Any] = {}
    for path in sorted((ROOT / "inventory/group_vars").iterdir()):
        text = path.read_text()
        assert yaml.safe_load(text) is None, f"{path} sets something"
        uncommented = yaml.safe_load(re.sub(r"(?m)^# (?=[a-z_]+: *\S|[a-z_]+:$|  )", "", text))
        with_meaning = re.findall(r"(?m)^# [A-Z].*\.\n# [a-z_]+:", text)
        assert len(uncommented) == len(with_meaning)
        settings |= uncommented
    assert len(settings) == 10
    made = check_settings({"inventory_dir": "/nowhere", **settings}, ROOT / "collection/roles", DataLoader())
    assert made.problems == []
    assert set(made.values) == set(settings)
