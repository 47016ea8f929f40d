#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# Not ansible.posix.mount: it hangs if a server does not answer, and leaves unverified entries in fstab.
"""Mount and verify a shared file system."""

from __future__ import annotations

DOCUMENTATION = r"""
module: shared_mount
short_description: Mount and verify an FSx file system
description:
  - V(configured) writes the entry in C(/etc/fstab), with systemd's automount, or mounting at boot if the kernel has no
    autofs.
  - V(mounted) creates the directory if it is missing, waits for the server's name, loads Lustre's modules, configures
    its network, mounts, and verifies.
  - V(proven) changes nothing. It verifies that the path is a mount point of the right source, and that a file whose
    name is unique to this node can be written to disk there and deleted.
  - A new entry, or one with changed options, stays in C(/etc/fstab) only if V(mounted) succeeds.
  - Errors that another attempt cannot resolve, such as an unknown mount option, are not retried.
  - A file system that is mounted already, by the agent or by an earlier run, is only verified. Existing mounts are
    never changed or remounted, and their owner and mode are kept.
  - Operations that may hang run in a child process with a time limit.
extends_documentation_fragment:
  - hyperpod.lifecycle.attributes.files
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
options:
  path:
    description: Mount point, an absolute path without symbolic links.
    type: str
    required: true
  kind:
    description: Type of the file system.
    type: str
    choices: [lustre, openzfs]
    required: true
  dns_name:
    description: DNS name of the server.
    type: str
    required: true
  mount_name:
    description: Mount name of a Lustre file system.
    type: str
  export:
    description: Path that the OpenZFS server exports.
    type: str
    default: /fsx
  options:
    description: Mount options, without those for systemd.
    type: list
    elements: str
    default: []
  state:
    description: Desired state.
    type: str
    choices: [configured, mounted, proven]
    required: true
  resolve_seconds:
    description: Seconds to wait for the DNS name to resolve.
    type: int
    default: 60
  wait_seconds:
    description: Seconds to try until the file system is verified.
    type: int
    default: 180
  attempt_seconds:
    description: Seconds that one attempt to mount or write may take.
    type: int
    default: 30
  probe_user:
    description: User that writes the test file if root is squashed.
    type: str
    default: ubuntu
"""

EXAMPLES = r"""
- name: Mount Lustre
  hyperpod.lifecycle.shared_mount:
    path: /fsx
    kind: lustre
    dns_name: fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com
    mount_name: abcdefgh
    options: [noatime, flock]
    state: mounted
"""

RETURN = r"""
notes:
  description: Notes for the summary.
  type: list
  elements: str
  returned: success
source:
  description: Source of the mount, as the kernel shows it. Empty if nothing is mounted.
  type: str
  returned: success
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.mounting import FSTAB, Share


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "str", "required": True},
            "kind": {"type": "str", "choices": ["lustre", "openzfs"], "required": True},
            "dns_name": {"type": "str", "required": True},
            "mount_name": {"type": "str"},
            "export": {"type": "str", "default": "/fsx"},
            "options": {"type": "list", "elements": "str", "default": []},
            "state": {"type": "str", "choices": ["configured", "mounted", "proven"], "required": True},
            "resolve_seconds": {"type": "int", "default": 60},
            "wait_seconds": {"type": "int", "default": 180},
            "attempt_seconds": {"type": "int", "default": 30},
            "probe_user": {"type": "str", "default": "ubuntu"},
        },
        required_if=[("kind", "lustre", ["mount_name"])],
        supports_check_mode=True,
    )
    path = module.params["path"]
    plain = path.rstrip("/")
    if not plain.startswith("/") or plain.startswith("//") or os.path.normpath(plain) != plain:
        module.fail_json(msg=f"the mount path {path!r} is not a plain absolute path; write it as /name")
    share = Share(module)
    state = module.params["state"]
    changed, before, after = False, "", ""
    try:
        if state == "configured":
            changed, before, after = share.configure()
        elif module.check_mode:
            changed = state == "mounted" and not share.mounted()
        elif state == "mounted":
            changed = share.mount()
        else:
            share.until_proven(start=False)
            share.next_kernel()
        mount = share.mounted()
    except Fault as fault:
        module.fail_json(msg=str(fault))
    module.exit_json(
        changed=changed,
        notes=share.notes,
        source=mount.source if mount else "",
        diff={"before": before, "after": after, "before_header": str(FSTAB), "after_header": str(FSTAB)},
    )


if __name__ == "__main__":
    main()
