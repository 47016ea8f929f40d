#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# Not ansible.builtin.lineinfile: wildcards are replaced by the matching files, and expanded again on each run.
"""List SPANK plugins individually in plugstack.conf."""

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_plugstack_include
short_description: Expand wildcard includes in plugstack.conf
description:
  - Configless nodes receive C(plugstack.conf) but not the directory that it includes, so a wildcard there matches
    nothing. Each wildcard include is replaced by the files that match it, if all users can read them and their names
    end in C(.conf). Another one would keep every user from starting jobs.
  - The wildcard is kept as a comment and expanded again on each run.
extends_documentation_fragment:
  - hyperpod.lifecycle.attributes.files
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
options:
  path:
    description: C(plugstack.conf). If it is missing and O(include) is empty, nothing is done.
    type: path
    required: true
  include:
    description: Absolute path of a file that must be included. Empty for none.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: List SPANK plugins individually
  hyperpod.lifecycle.slurm_plugstack_include:
    path: /opt/slurm/etc/plugstack.conf
"""

RETURN = r"""
note:
  description: Files that match a wildcard and are not included. Empty if there are none.
  type: str
  returned: success
"""

import glob
import os
import stat

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.files import difference, replace
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.slurm import expand_includes


def meant(path):
    """Return whether a file that matches a wildcard is a plugin's, which any user's srun can read."""
    return path.endswith(".conf") and os.path.isfile(path) and bool(os.stat(path).st_mode & stat.S_IROTH)


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"path": {"type": "path", "required": True}, "include": {"type": "str", "default": ""}},
        supports_check_mode=True,
    )
    path, include = module.params["path"], module.params["include"]
    if not os.path.exists(path) and not include:
        module.exit_json(changed=False, note="", msg=f"no {path}")
    before = ""
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            before = file.read()
    # A relative pattern is relative to the directory of the file.
    folder = os.path.dirname(path)
    ignored = []

    def matches(pattern):
        found = sorted(glob.glob(os.path.join(folder, pattern)))
        ignored.extend(path for path in found if not meant(path))
        return [path for path in found if meant(path)]

    after = expand_includes(before, matches)
    if include and f"include {include}" not in after.splitlines():
        after += f"include {include}\n"
    changed = replace(module, path, before, after, None if os.path.exists(path) else 0o644)
    note = f"{path} does not include {', '.join(ignored)}: a name in .conf and mode 0644 are needed" if ignored else ""
    module.exit_json(changed=changed, note=note, diff=difference(path, before, after))


if __name__ == "__main__":
    main()
