# SPDX-License-Identifier: Apache-2.0
"""Every assumption is written down whole, and probes answer, read only, on any machine."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from conftest import BASELINE, ROOT

from hyperpod_lifecycle import assumptions
from hyperpod_lifecycle.assumptions import CANNOT_TELL, DOES_NOT_HOLD, HOLDS
from hyperpod_lifecycle.paths import Paths

DOCUMENT = yaml.safe_load((ROOT / "collection/meta/assumptions.yml").read_text())
ROWS = DOCUMENT["assumptions"]


def test_each_row_is_whole_and_every_role_has_one() -> None:
    names = [row["id"] for row in ROWS]
    assert len(set(names)) == len(names)
    roles = {path.name for path in (ROOT / "collection/roles").iterdir()}
    assert {name.partition(".")[0] for name in names} == roles | {"runner"}
    for row in ROWS:
        assert set(row) - {"nodes"} == {"id", "claim", "source", "certainty", "depends", "probe"}, row["id"]
        assert row["source"] in DOCUMENT["sources"]
        assert row["certainty"] in ("seen", "documented", "inferred")
    assert set(DOCUMENT["sources"]) == {row["source"] for row in ROWS}


@pytest.mark.once
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_each_probe_is_shell(row: dict[str, str]) -> None:
    subprocess.run(["sh", "-n"], input=assumptions.PRELUDE + row["probe"], text=True, check=True)


@pytest.mark.once
def test_a_machine_without_any_run_or_file_has_an_answer_for_each_row(tmp_path: Path) -> None:
    paths = Paths(*(tmp_path / name for name in ("log", "run", "etc", "platform")))
    found = {finding.id: finding for finding in assumptions.probe(paths)}
    assert len(found) == len(ROWS)
    assert found["platform.resource_config"].verdict == DOES_NOT_HOLD
    assert found["platform.customer_address"].verdict == CANNOT_TELL
    assert found["slurm.conf_server"].detail == "the type of this node is not known"
    assert not list(tmp_path.iterdir()), "nothing was written"


@pytest.mark.once
def test_probes_read_the_platforms_files(tmp_path: Path) -> None:
    paths = Paths(*(tmp_path / name for name in ("log", "run", "etc", "platform")))
    shutil.copytree(BASELINE, paths.platform_dir)
    (paths.platform_dir / "resource_config.json").chmod(0o600)
    found = {finding.id: finding for finding in assumptions.probe(paths)}
    for name in ("resource_config", "files_are_private", "instance_names", "cluster_type", "parameters_file"):
        assert found[f"platform.{name}"].verdict == HOLDS, found[f"platform.{name}"]
    (paths.platform_dir / "resource_config.json").write_text('{"InstanceGroups": [{"Name": "a"')
    found = {finding.id: finding for finding in assumptions.probe(paths)}
    assert found["platform.instance_names"].verdict == CANNOT_TELL
    assert "JSONDecodeError" in found["platform.instance_names"].detail


def test_a_probe_that_hangs_is_killed_at_the_limit(tmp_path: Path) -> None:
    mark = tmp_path / "late"
    verdict, detail = assumptions._run(f"sleep 600; touch {mark}", {"PATH": "/usr/bin:/bin"}, deadline=0)
    assert (verdict, detail) == (CANNOT_TELL, "no answer within the limit")


def test_what_does_not_hold_comes_first_with_its_consequence() -> None:
    def finding(verdict: str, name: str) -> assumptions.Finding:
        return assumptions.Finding(name, "claim", "source", "seen", "much", verdict, "")

    shown = list(assumptions.lines([finding(HOLDS, "a.b"), finding(DOES_NOT_HOLD, "c.d")]))
    assert shown[0] == "does not hold  c.d: claim; depends on it: much"
    assert shown[-1] == "2 assumptions: 1 holds, 1 does not hold, 0 cannot tell"
