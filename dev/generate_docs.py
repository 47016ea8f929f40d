# SPDX-License-Identifier: Apache-2.0
"""Write the parts of the documentation that follow from the roles: `make docs`. A test fails when they are stale.

A page has a role's settings between ``<!-- begin settings ROLE -->`` and ``<!-- end settings -->``. Each role's
README.md is written whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
ROLES = ROOT / "collection/roles"
MODULES = ROOT / "collection/plugins/modules"
#: Page in docs/ of a role that has no page of its own name.
PAGES = {"holds": "storage", "fsx": "storage"}

_TABLE = re.compile(r"(<!-- begin settings (\w+) -->\n).*?(<!-- end settings -->)", re.DOTALL)
_MARKUP = re.compile(r"\b(?:[CIBOVEP]|RV|M)\(((?:[^()\\]|\\.)*)\)")


def main() -> None:
    """Write every file that differs."""
    for path, text in documents():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")


def documents() -> Iterator[tuple[Path, str]]:
    """Each file with generated parts, and what it should contain."""
    for path in sorted((ROOT / "docs").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if _TABLE.search(text):
            yield path, _TABLE.sub(lambda match: f"{match[1]}{table(match[2])}{match[3]}", text)
    for role in sorted(path.name for path in ROLES.iterdir() if path.is_dir()):
        yield ROLES / role / "README.md", readme(role)
    yield ROOT / "docs/modules.md", modules()


def modules() -> str:
    """The page of all modules: what each does, who uses it, and why no builtin does it."""
    users = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "collection").glob("*/**/*.yml"))}
    rows = []
    for path in sorted(MODULES.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        found = {user(each) for each, content in users.items() if f"hyperpod.lifecycle.{path.stem}:" in content}
        rows.append(f"| `{path.stem}` | {summary(text)} | {', '.join(sorted(found - {''}))} | {reason(text)} |")
    return f"""\
<!-- SPDX-License-Identifier: Apache-2.0 -->
<!-- Written by `make docs` from the modules. -->
# Modules

Roles use Ansible's builtin modules where possible. The collection has its own module where they are not enough; the
first comment of each module gives the reason. `ansible-doc hyperpod.lifecycle.NAME` shows the options.

| Module | Purpose | Used by | Reason |
|---|---|---|---|
{chr(10).join(rows)}
"""


def summary(text: str) -> str:
    """The short description of a module."""
    match = re.search(r"^short_description: (.*)$", text, re.MULTILINE)
    return paragraph(match[1]) if match else ""


def reason(text: str) -> str:
    """The first comment of a module, after the licence."""
    lines = (
        re.split(r"^# (?:SPDX|GNU)-?[^\n]*\n(?!# GNU)", text, maxsplit=1, flags=re.MULTILINE)[1]
        .split('"""')[0]
        .splitlines()
    )
    return paragraph(" ".join(line.removeprefix("#").strip() for line in lines))


def user(path: Path) -> str:
    """The role or playbook that a file belongs to; empty for what is neither."""
    kind, name = path.relative_to(ROOT / "collection").parts[:2]
    return {"roles": name, "playbooks": path.stem}.get(kind, "")


def readme(role: str) -> str:
    """The README of a role."""
    spec = entry_point(role)
    page = PAGES.get(role, role)
    description = "\n\n".join(paragraph(text) for text in _list(spec.get("description", [])))
    return f"""\
<!-- SPDX-License-Identifier: Apache-2.0 -->
<!-- Written by `make docs` from meta/argument_specs.yml and defaults/main.yml. -->
# hyperpod.lifecycle.{role}

{paragraph(spec["short_description"])}.

{description}

Node types: {", ".join(node_types(role))}. Documentation: [docs/{page}.md](../../../docs/{page}.md).

```sh
hyperpod-lifecycle apply --tags {role}
```

{table(role)}"""


def table(role: str) -> str:
    """A role's settings as a Markdown table."""
    rows = [
        f"| `{name}` | {kind(option)} | {default(option)} | {describe(option)} |"
        for name, option in entry_point(role)["options"].items()
    ]
    return "\n".join(["| Setting | Type | Default | Meaning |", "|---|---|---|---|", *rows, ""])


def entry_point(role: str) -> dict[str, Any]:
    """The argument spec of a role."""
    spec: dict[str, Any] = yaml.safe_load((ROLES / role / "meta/argument_specs.yml").read_text())["argument_specs"][
        "main"
    ]
    return spec


def node_types(role: str) -> list[str]:
    """The node types of a role's playbook."""
    (play,) = yaml.safe_load((ROOT / f"collection/playbooks/{role}.yml").read_text())
    return list(play["hosts"])


def kind(option: Mapping[str, Any]) -> str:
    """The type of an option, with its choices."""
    name = str(option["type"]) + (f" of {option['elements']}" if "elements" in option else "")
    choices = ", ".join(f"`{choice}`" for choice in option.get("choices", ()))
    return f"{name}: {choices}" if choices else name


def default(option: Mapping[str, Any]) -> str:
    """The default of an option: short ones as they are, computed and long ones in words."""
    if "default" not in option:
        return "required" if option.get("required") else "none"
    value = option["default"]
    if value in ("", [], {}, None):
        return "none"
    text = value.strip() if isinstance(value, str) else json.dumps(value)
    if "{{" in text:
        simple = re.fullmatch(r"{{ (\w+) }}", text)
        return f"`{simple[1]}`" if simple else "computed"
    return f"`{text}`" if len(text) <= 60 else "see `defaults/main.yml`"


def describe(option: Mapping[str, Any]) -> str:
    """The meaning of an option."""
    return paragraph(" ".join(_list(option["description"])))


def paragraph(text: str) -> str:
    """Ansible's markup as Markdown, fit for a table's cell."""
    plain = _MARKUP.sub(lambda match: f"`{match[1]}`".replace("\\", ""), " ".join(str(text).split()))
    return plain.replace("|", "\\|")


def _list(value: Any) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else [str(value)]


if __name__ == "__main__":
    main()
