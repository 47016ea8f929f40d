# SPDX-License-Identifier: Apache-2.0
"""The upload folder of a lab."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from hyperpod_lab import upload
from hyperpod_lab.agent.request import from_create_cluster
from hyperpod_lab.image import Release
from hyperpod_lab.shape import Shape

EXAMPLE = Path(__file__).parents[3] / "lab/example/create_cluster.json"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, ["hyperpod.yml"]),
        ({"group_vars/.gitkeep": ""}, [".gitkeep", "hyperpod.yml"]),
        ({"group_vars/all.yml": "# Settings\n---\n\n# a: 1\n"}, ["all.yml", "hyperpod.yml"]),
        ({"group_vars/all": "a: 1\n"}, ["all"]),
        ({"group_vars/compute/slurm.yml": "# Settings\n---\na: 1\n"}, ["slurm.yml"]),
    ],
)
def test_the_labs_settings_are_for_an_inventory_without_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: list[str]
) -> None:
    def build(dest: Path, *_args: Any, **_options: Any) -> Path:
        (dest / "inventory/group_vars").mkdir(parents=True)
        for name, text in files.items():
            (dest / "inventory" / name).parent.mkdir(exist_ok=True)
            (dest / "inventory" / name).write_text(text)
        return dest

    monkeypatch.setattr(upload.bundle, "build", build)
    shape: Shape = from_create_cluster(EXAMPLE, None, Release.TRIXIE)
    folder = upload.build(shape, tmp_path / "src", lambda _line: None)
    assert sorted(path.name for path in folder.glob("inventory/group_vars/**/*") if path.is_file()) == expected
    if expected[-1] == "hyperpod.yml":
        settings = yaml.safe_load((folder / "inventory/group_vars/hyperpod.yml").read_text())
        assert settings == {"containers_enroot_enabled": False, "containers_pyxis_enabled": False}
