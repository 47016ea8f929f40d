# SPDX-License-Identifier: Apache-2.0
"""The one way to install packages, in modules and in on_create.sh, with a fake_apt in all sorts of states."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import apt
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault
from ansible_collections.hyperpod.lifecycle.plugins.modules import package_install
from conftest import ROOT

#: apt-get and dpkg in one. Files in a folder are the state of the machine, and `calls` says what was asked of it.
FAKE_APT = """\
#!{python}
import os, sys
from pathlib import Path

here = Path({here!r})
name, words = Path(sys.argv[0]).name, [word for word in sys.argv[1:] if word[0] != "-" and "::" not in word]
with (here / "calls").open("a") as calls:
    print(name, *words or sys.argv[1:], os.environ.get("NEEDRESTART_SUSPEND", ""), file=calls)

def fail(text):
    print(text)
    sys.exit(100)

def take(state):
    "Is the machine in this state? It is left so many calls later."
    path = here / state
    left = int(path.read_text()) if path.exists() else 0
    if left:
        path.write_text(str(left - 1))
    return left

if name == "dpkg" and "--audit" in sys.argv:
    print("x is half-configured" if (here / "interrupted").exists() else "")
    sys.exit()
if take("locked"):
    fail("E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (apt-get)")
if name == "dpkg":
    (here / "interrupted").unlink()
    sys.exit()
parts = [word.partition("Dir::Etc::SourceParts=")[2] for word in sys.argv if "SourceParts=" in word]
if (Path(*parts or [here / "sources.list.d"]) / "bad.list").exists():
    fail("E: Malformed entry 1 in list file bad.list (Suite)\\nE: The list of sources could not be read.")
if words[0] == "indextargets":
    sys.exit()
if words[0] == "update":
    if (here / "relabelled").exists() and "--allow-releaseinfo-change" not in sys.argv:
        fail("E: Repository 'http://x stable InRelease' changed its 'Suite' value from 'stable' to 'oldstable'")
    (here / "lists").write_text("new")
    if (here / "broken").exists():
        fail("E: The repository 'http://theirs stable Release' does not have a Release file.")
    sys.exit()
if (here / "interrupted").exists():
    fail("E: dpkg was interrupted, you must manually run 'dpkg --configure -a' to correct the problem.")
if not (here / "lists").exists():
    fail("E: Unable to locate package " + words[-1])
if (here / "lists").read_text() == "old":
    fail("E: Failed to fetch http://deb/x.deb  404  Not Found")
(here / "installed").write_text(words[-1])
"""

#: What a machine may be like before packages are installed.
STATES = {
    "in order": {"lists": "new"},
    "no lists": {},
    "old lists": {"lists": "old"},
    "a broken repository": {"broken": ""},
    "a repository with another label": {"relabelled": ""},
    "a held lock": {"lists": "new", "locked": "3"},
    "a held lock and no lists": {"locked": "3"},
    "an interrupted installation": {"lists": "new", "interrupted": ""},
}
UNREADABLE = {"sources.list.d/bad.list": "deb x", "sources.list.d/good.sources": "Types: deb"}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], Path]:
    """A folder of fake_apt's, with the files of a state."""
    for name in ("apt-get", "dpkg"):
        (tmp_path / name).write_text(FAKE_APT.format(python=sys.executable, here=str(tmp_path)))
        (tmp_path / name).chmod(0o755)
    (tmp_path / "sources.list.d").mkdir()
    monkeypatch.setitem(apt.ENVIRONMENT, "PATH", f"{tmp_path}:{os.defpath}")
    monkeypatch.setattr(apt, "SOURCES", str(tmp_path / "sources.list.d"))
    monkeypatch.setattr(apt, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(apt, "LOCK_POLL_SECONDS", 0)

    def state(files: dict[str, str]) -> Path:
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        return tmp_path

    return state


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


@pytest.mark.parametrize("files", [*STATES.values(), UNREADABLE], ids=[*STATES, "an unreadable repository"])
def test_a_package_is_installed_whatever_others_have_left(machine: Callable[..., Path], files: dict[str, str]) -> None:
    folder = machine(files)
    apt.install(["munge"])
    assert (folder / "installed").read_text() == "munge"
    assert all(call.endswith(" 1") for call in calls(folder)), "needrestart is quiet in each call"


def test_what_a_killed_run_has_unpacked_is_configured_though_its_program_is_there(
    machine: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = machine(STATES["an interrupted installation"])
    ended: dict[str, Any] = {}

    class Module:
        params: ClassVar[dict[str, Any]] = {"programs": {"/bin/sh": "dash"}}
        check_mode = False

        def __init__(self, **_: Any) -> None:
            pass

        def exit_json(self, **result: Any) -> None:
            ended.update(result)

    monkeypatch.setattr(package_install, "AnsibleModule", Module)
    package_install.main()
    assert ended["changed"] is True
    assert not (folder / "interrupted").exists()
    package_install.main()
    assert ended["changed"] is False
    assert not (folder / "installed").exists(), "its program was there"


def test_nothing_is_updated_where_the_lists_serve(machine: Callable[..., Path]) -> None:
    folder = machine(STATES["in order"])
    apt.install(["munge"])
    assert calls(folder) == ["dpkg --audit 1", "apt-get install munge 1"]


def test_a_lock_that_stays_is_reported_with_its_holder(
    machine: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine({"lists": "new", "locked": "1000"})
    monkeypatch.setattr(apt, "LOCK_SECONDS", 0)
    with pytest.raises(Fault, match=r"was not free within 0 s: process 7.* has it; let it end .*lists/lock"):
        apt.install(["munge"])


def test_who_holds_dpkgs_lock_is_named() -> None:
    said = f"dpkg: error: dpkg frontend lock was locked by another process with pid {os.getpid()}"
    assert apt.holder(said).startswith(f"process {os.getpid()} (")
    assert "python" in apt.holder(said) or "pytest" in apt.holder(said)
    assert apt.holder("the lock is taken") == "another process"


def test_apts_own_words_are_in_the_message(machine: Callable[..., Path]) -> None:
    folder = machine({})
    (folder / "apt-get").write_text("#!/bin/sh\necho noise\necho E: Unable to locate package munge\nexit 100\n")
    with pytest.raises(Fault, match="apt-get does not install munge: E: Unable to locate package munge$"):
        apt.install(["munge"])


@pytest.mark.once
@pytest.mark.parametrize("files", STATES.values(), ids=STATES)
def test_on_create_does_as_modules_do(machine: Callable[..., Path], files: dict[str, str]) -> None:
    folder = machine(files)
    function = "source <(sed -n '/^install_ensurepip() {/,/^}/p' on_create.sh); python_name=python3"
    script = f"{function}; for try in 1 2 3 4 5 6; do ! install_ensurepip || exit 0; done; exit 1"
    environment = {"PATH": f"{folder}:{os.defpath}"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "installed").read_text() == "python3-venv"
    assert all(call.endswith(" 1") for call in calls(folder))
