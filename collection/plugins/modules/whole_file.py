#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""A file of ours, with its folder."""

from __future__ import annotations

DOCUMENTATION = r"""
module: whole_file
short_description: Write a file whole, and make its folder
description:
  - For files that are ours alone, such as a drop-in. Unlike M(ansible.builtin.copy) it can be checked where the folder
    is still missing.
author: hyperpod-lifecycle maintainers
options:
  path:
    description: The file.
    type: path
    required: true
  content:
    description: All of its text.
    type: str
    required: true
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
"""

EXAMPLES = r"""
- name: Write a drop-in
  hyperpod.lifecycle.whole_file:
    path: /etc/systemd/system/docker.service.d/hyperpod.conf
    content: |
      [Unit]
      After=dlami-nvme.service
"""

RETURN = r""" # """

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.files import difference, replace


def main():
    """Entry point."""
    module = AnsibleModule(
        argument_spec={"path": {"type": "path", "required": True}, "content": {"type": "str", "required": True}},
        supports_check_mode=True,
    )
    path, after = Path(module.params["path"]), module.params["content"]
    before = path.read_text(encoding="utf-8", errors="surrogateescape") if path.exists() else ""
    if not module.check_mode:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    changed = replace(module, path, before, after, 0o644)
    module.exit_json(changed=changed, diff=difference(path, before, after))


if __name__ == "__main__":
    main()
