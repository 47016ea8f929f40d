# SPDX-License-Identifier: Apache-2.0
"""Create the skeleton of a concern: `make concern NAME=motd`. See docs/add-a-concern.md for what to change in it."""

from __future__ import annotations

import sys
from pathlib import Path

FILES = {
    "collection/roles/{name}/meta/argument_specs.yml": """\
# SPDX-License-Identifier: Apache-2.0
---
argument_specs:
  main:
    short_description: {title} of a node
    description: Write {title} from the cluster's data.
    author: hyperpod-lifecycle maintainers
    options:
      {name}_node_type:
        description: Type of this node.
        type: str
        choices: [controller, login, compute]
        default: "{{{{ hyperpod_node_type }}}}"
      {name}_path:
        description: The file to write.
        type: path
        default: /etc/hyperpod-{name}
""",
    "collection/roles/{name}/defaults/main.yml": """\
# SPDX-License-Identifier: Apache-2.0
---
# Type of this node: controller, login or compute.
{name}_node_type: "{{{{ hyperpod_node_type }}}}"
# The file to write.
{name}_path: /etc/hyperpod-{name}
""",
    "collection/roles/{name}/tasks/main.yml": """\
# SPDX-License-Identifier: Apache-2.0
---
- name: Configure {title}
  ansible.builtin.import_tasks: configure.yml
  tags: [configure]

- name: Verify {title}
  ansible.builtin.import_tasks: verify.yml
  tags: [verify]
""",
    "collection/roles/{name}/tasks/configure.yml": """\
# SPDX-License-Identifier: Apache-2.0
---
- name: Write {title}
  ansible.builtin.copy:
    content: |
      {{{{ {name}_node_type }}}}
    dest: "{{{{ {name}_path }}}}"
    mode: "0644"
""",
    "collection/roles/{name}/tasks/verify.yml": """\
# SPDX-License-Identifier: Apache-2.0
---
- name: Look for {title}
  ansible.builtin.stat:
    path: "{{{{ {name}_path }}}}"
    get_checksum: false
  register: __{name}_file

- name: Verify {title}
  ansible.builtin.assert:
    that: __{name}_file.stat.exists
    fail_msg: "{{{{ {name}_path }}}} does not exist: hyperpod-lifecycle apply --tags {name}"
  when: not ansible_check_mode
""",
    "collection/playbooks/{name}.yml": """\
# SPDX-License-Identifier: Apache-2.0
---
- name: {name}
  hosts: [controller, login, compute]
  gather_facts: false
  tags: [{name}]
  roles:
    - role: hyperpod.lifecycle.{name}
""",
    "collection/extensions/molecule/tasks/{name}.yml": """\
# SPDX-License-Identifier: Apache-2.0
---
- name: Read {title}
  ansible.builtin.command: cat /etc/hyperpod-{name}
  register: {name}
  changed_when: false
  failed_when: {name}.stdout != hyperpod_node_type
""",
    "docs/{name}.md": """\
<!-- SPDX-License-Identifier: Apache-2.0 -->
# {Title}

`{name}` writes {title} of each node.

```yaml
# inventory/group_vars/all.yml
{name}_path: /etc/hyperpod-{name}
```

## Settings

<!-- begin settings {name} -->
<!-- end settings -->

## Errors

| Message | Remedy |
|---|---|
| `… does not exist` | `hyperpod-lifecycle apply --tags {name}` |
""",
}
IMPORT = """
- name: Set up {title}
  ansible.builtin.import_playbook: hyperpod.lifecycle.{name}
"""


def create(root: Path, name: str) -> list[Path]:
    """Write the files of the concern `name` into the checkout `root`, and its line at the end of the site playbook.

    Raises ValueError if `name` cannot be a concern's, FileExistsError if the concern is there.
    """
    if not (name.isidentifier() and name.islower() and not name.startswith("hyperpod")):
        raise ValueError(f"{name!r} cannot name a concern: use lower case letters, digits and _")
    words = {"name": name, "title": name.replace("_", " "), "Title": name.replace("_", " ").capitalize()}
    files = {root / path.format(**words): text.format(**words) for path, text in FILES.items()}
    for path in files:
        if path.exists():
            raise FileExistsError(f"{path} exists")
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    with (root / "collection/playbooks/site.yml").open("a", encoding="utf-8") as site:
        site.write(IMPORT.format(**words))
    return list(files)


def main() -> int:
    """Entry point: NAME."""
    try:
        files = create(Path(__file__).parents[1], sys.argv[1])
    except (ValueError, FileExistsError) as error:
        print(error, file=sys.stderr)
        return 2
    for path in files:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
