# SPDX-License-Identifier: Apache-2.0
"""A concern that is switched off does nothing. Ansible renders the loops of skipped tasks too."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT


def switches() -> dict[str, str]:
    """Each role that can be switched off, and its switch."""
    found = {}
    for spec in (ROOT / "collection/roles").glob("*/meta/argument_specs.yml"):
        role = spec.parents[1].name
        if f"{role}_enabled" in yaml.safe_load(spec.read_text())["argument_specs"]["main"]["options"]:
            found[role] = f"{role}_enabled"
    return found


@pytest.mark.parametrize("node", ["brain-1", "muscle-2"])
def test_all_that_can_be_switched_off_at_once(
    ansible: Any, source: Callable[..., Path], tmp_path: Path, node: str
) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps(dict.fromkeys(switches().values(), False)))
    done = ansible(
        *("ansible-playbook", "-i", source(node=node), "--check", "-e", f"@{settings}"),
        *("--tags", ",".join(switches()), "hyperpod.lifecycle.site"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"changed=0 .*failed=0 .*rescued=0 ", done.stdout), done.stdout
