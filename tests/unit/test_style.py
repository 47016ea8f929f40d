# SPDX-License-Identifier: Apache-2.0
"""The English that a machine can check: replaced phrases, names of tasks, and the command line's help."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command
from typer.testing import CliRunner

from hyperpod_lifecycle.cli import app

ROOT = Path(__file__).parents[2]
COLLECTION = ROOT / "collection"

#: History, the texts of licences, files of real clusters, and the list itself.
EXEMPT = ("CHANGELOG.md", "LICENSE", "LICENSES/", "tests/unit/cases/", "tests/unit/test_style.py")

#: Phrases that have a plainer form. `…` stands for a few words.
REPLACED = """
Make this node … what the cluster's two JSON files say it is
Say what would change, and change nothing
Say what a node is and which concerns run on it
Bring back what `backup` has saved
Also if jobs since the backup are lost by it
it is for controller
it is for login
it is for compute
nothing that is for this node has these tags
a phase cannot be skipped of both
the platform's files say this, and nobody else
its value is no YAML
a run now would not begin
Ansible did not bring this node to its end
of a run does not end; it is stuck in the kernel
the wheels … do not serve Python
this user: is not root
see the report; the required concerns are in order
left alone, unknown keys
found 1 fields
what others still owe it
what it sees to
Run what any change must pass
all but the clusters of single concerns
Measure what README says
Say what can be made
How far to go.
belongs to somebody else is an error, and stays theirs
Where root is nobody
Anything that is missing means TCP and never fails a node
a folder that is only there
a difference is shown
a difference of files
0600 from birth
made anew
begin anew
begins anew
goes on in the clear
Let a slurmctld that runs have the settings
Is Docker as it must be
Prove that all is as it must be
Make the database elsewhere
a database elsewhere
Take the history along
Write what starts a standby anew when its files have changed
Take off those that this node does not need any more
Have the password of a database elsewhere
Tell the summary what there is to say
Let the right one start
And what Docker has only for a moment
Keep devices to the jobs that have them
Keep the wrong daemons off this node
""".strip().splitlines()

#: What a task's name begins with.
VERBS = """
Add Apply Back Build Check Collect Compare Configure Constrain Converge Create Decide Delete Discover Download Enable
Extract Fail Fetch Find Get Hold Include Install Kill List Look Mask Migrate Mount Move Put Read Reconfigure Record
Refuse Reload Remove Report Restart Restore Rotate Run Save Send Set Share Start Stop Unmask Unmount Unpack Verify Wait
Watch Write
"""


def pattern(phrase: str) -> re.Pattern[str]:
    """The phrase in any case, also where a line break, a comment's sign or a string's quotes come between its words."""
    between = r"""(?:[\s"'#|*>\\]|\bf(?="))+"""
    words = ("(?:.{1,80}?)" if word == "…" else re.escape(word) for word in phrase.split())
    return re.compile(rf"(?is)(?<![\w]){between.join(words)}(?!\w)")


def tracked() -> Iterator[tuple[str, str]]:
    """Name and text of each tracked text file."""
    names = subprocess.run(
        ["git", "-c", "safe.directory=*", "-C", ROOT, "ls-files", "-z"], check=True, capture_output=True, text=True
    ).stdout
    for name in filter(None, names.split("\0")):
        path = ROOT / name
        if not name.startswith(EXEMPT) and path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            if b"\0" not in content:
                yield name, content.decode(errors="replace")


@pytest.mark.once
def test_no_replaced_phrase_is_left() -> None:
    patterns = {phrase: pattern(phrase) for phrase in REPLACED}
    rarest = {phrase: max(phrase.lower().replace("…", "").split(), key=len) for phrase in REPLACED}
    found = []
    for name, text in tracked():
        low = text.lower()
        for phrase, regex in patterns.items():
            for match in regex.finditer(text) if rarest[phrase] in low else ():
                found.append(f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {phrase}")
    assert found == []


def test_a_phrase_is_found_across_lines() -> None:
    regex = pattern("0600 from birth")
    assert regex.search('"mode 0600 "\n    f"from birth"')
    assert regex.search("# 0600 from\n# birth")
    assert not regex.search("0600 from births")
    assert pattern("the wheels … do not serve").search("the wheels in dist/\ndo not serve Python 3.11")


def items(content: Any) -> Iterator[dict[str, Any]]:
    """The plays, blocks and tasks of a parsed file."""
    for item in content if isinstance(content, list) else ():
        if isinstance(item, dict):
            yield item
            for key in ("tasks", "pre_tasks", "post_tasks", "handlers", "block", "rescue", "always"):
                yield from items(item.get(key))


def task_names() -> list[tuple[str, str]]:
    """File and name of every task, block and imported playbook of the collection, and of the tasks in its examples."""
    found = []
    for path in sorted(COLLECTION.rglob("*.yml")):
        if {"tasks", "handlers", "playbooks", "molecule"} & set(path.relative_to(COLLECTION).parts):
            found += [(path, item) for item in items(yaml.safe_load(path.read_text()))]
    for path in sorted((COLLECTION / "plugins/modules").glob("*.py")):
        examples = re.search(r'(?s)^EXAMPLES = r?"""(.*?)"""', path.read_text(), re.MULTILINE)
        assert examples, path
        found += [(path, item) for item in items(yaml.safe_load(examples[1]))]
    # A concern's play is named after the concern, as its tag is.
    return [
        (str(path.relative_to(ROOT)), item["name"])
        for path, item in found
        if "name" in item and not (item["name"] == path.stem and "hosts" in item)
    ]


@pytest.mark.once
def test_names_of_tasks_are_imperative() -> None:
    names, verbs = task_names(), VERBS.split()
    assert len(names) > 100
    wrong = [(file, name) for file, name in names if name.split()[0] not in verbs or name.endswith(("?", "."))]
    assert wrong == []


COMMANDS = sorted(get_command(app).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)], ids=" ".join)
def test_help_fits_on_80_columns(words: list[str]) -> None:
    shown = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*words, "--help"])
    assert shown.exit_code == 0
    lines = shown.output.splitlines()[1:]
    assert [line for line in lines if len(line) > 80] == []
    assert [line for line in lines if line.endswith(("...", " …"))] == []


def test_summaries_of_commands_are_short() -> None:
    command = get_command(app)
    summaries = {name: sub.get_short_help_str(1000) for name, sub in command.commands.items()}  # type: ignore[attr-defined]
    assert {name: text for name, text in summaries.items() if not text or len(text) > 60} == {}
