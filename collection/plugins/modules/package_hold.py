#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# Not ansible.builtin.dpkg_selections: it has no patterns, needs a task per package, and does not wait for the
# lock.
"""Put installed packages on hold, by pattern."""

from __future__ import annotations

DOCUMENTATION = r"""
module: package_hold
short_description: Put installed packages on hold
description:
  - Holds every installed package whose name matches a pattern. Existing holds are kept.
  - While another process holds dpkg's lock, the module waits for up to five minutes, and then names that process in its
    error.
extends_documentation_fragment:
  - hyperpod.lifecycle.attributes.files
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
options:
  name:
    description: Names of packages, as shell patterns with C(*), C(?) and C([…]).
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Hold the kernel and its Lustre module
  hyperpod.lifecycle.package_hold:
    name: [linux-image-*, lustre-client-modules-*]
"""

RETURN = r"""
held:
  description: All matching packages, which are on hold now.
  type: list
  elements: str
  returned: success
"""

import fnmatch

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import apt
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault


def installed(patterns):
    """Return the matching installed packages that are not on hold, and those that are."""
    query = ("dpkg-query", "--show", "--showformat=${binary:Package} ${db:Status-Want} ${db:Status-Status}\\n")
    good, out = apt.call(*query)
    if not good:
        raise Fault(f"dpkg-query: {out.strip()}")
    free, held = [], []
    rows = [line.split(" ") for line in out.splitlines()]
    for package, want, status in (row for row in rows if len(row) == 3):
        name = package.split(":")[0]
        if status in ("not-installed", "config-files"):
            continue
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            (held if want == "hold" else free).append(package)
    return free, held


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"name": {"type": "list", "elements": "str", "required": True}}, supports_check_mode=True
    )
    try:
        free, held = installed(module.params["name"])
        selections = "".join(f"{package} hold\n" for package in free)
        if free and not module.check_mode:
            good, said = apt.unlocked("dpkg", "--set-selections", data=selections)
            if not good:
                raise Fault(f"dpkg does not hold {', '.join(free)}: {said.strip()}")
    except Fault as fault:
        module.fail_json(msg=str(fault))
    module.exit_json(
        changed=bool(free),
        held=sorted(held + free),
        msg="{}: {}".format("not on hold" if module.check_mode else "put on hold", ", ".join(free) or "none"),
        diff={"before": "", "after": selections},
    )


if __name__ == "__main__":
    main()
