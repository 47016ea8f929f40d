# SPDX-License-Identifier: Apache-2.0
"""Generated documentation is up to date, links lead somewhere, and a new concern has all that a concern needs."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import ROOT

from hyperpod_lifecycle.errors import ExitCode

pytestmark = pytest.mark.once

PAGES = [
    *(ROOT.glob("*.md")),
    *(path for folder in ("docs", "lab", "collection") for path in (ROOT / folder).rglob("*.md")),
]


def dev(name: str) -> ModuleType:
    """A program of dev/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"dev/{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_documentation_is_up_to_date() -> None:
    stale = [str(path) for path, text in dev("generate_docs").documents() if path.read_text(encoding="utf-8") != text]
    assert not stale, "make docs"


MODULES = sorted((ROOT / "collection/plugins/modules").glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_module_is_used_and_says_why_no_builtin_does_its_work(path: Path) -> None:
    docs = dev("generate_docs")
    assert docs.reason(path.read_text(encoding="utf-8")).startswith(("Not ", "No builtin: "))
    (row,) = [line for line in docs.modules().splitlines() if line.startswith(f"| `{path.stem}` |")]
    assert row.split(" | ")[2], "nobody uses it"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_pages_lead_to_files_and_headings(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?://)([^)]+)\)", page.read_text(encoding="utf-8")):
        name, _, heading = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
            assert heading in anchors, target


def test_the_skeleton_of_a_concern_has_the_shape_of_a_concern(tmp_path: Path) -> None:
    name = "tests_of_the_skeleton"  # docs/add-a-concern.md uses motd, which a user may have added
    folders = ["collection", "docs", "inventory_plugins", "tests", "dev"]
    for folder in folders:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    new_concern: Any = dev("new_concern")
    new_concern.create(tmp_path, name)
    subprocess.run([sys.executable, str(tmp_path / "dev/generate_docs.py")], check=True, timeout=60)
    assert f"`{name}_path`" in (tmp_path / f"docs/{name}.md").read_text()
    tests = ["tests/unit/test_roles.py", "tests/unit/test_docs.py::test_generated_documentation_is_up_to_date"]
    mine = f"{name} or site or documentation or read_each_other"
    shape = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", mine, *tests]
    done = subprocess.run(shape, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    with pytest.raises(FileExistsError):
        new_concern.create(tmp_path, name)
    for wrong in ("Motd", "my-concern", "hyperpod_x", ""):
        with pytest.raises(ValueError, match="cannot name a concern"):
            new_concern.create(tmp_path, wrong)


def test_the_table_of_exit_codes_is_that_of_the_program() -> None:
    (table,) = re.findall(
        r"^\| exit code \| meaning \|\n\|---\|---\|\n((?:\|.*\n)+)", (ROOT / "README.md").read_text(), re.M
    )
    *rows, killed = table.splitlines()
    assert rows == [f"| {int(code)} | {code.meaning} |" for code in ExitCode]
    assert killed.startswith("| 128 + N")
