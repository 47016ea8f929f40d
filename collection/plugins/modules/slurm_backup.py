#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# No builtin: database and state are copied while daemons run, and only a complete backup counts.
"""Back up the accounting database and slurmctld's state."""

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_backup
short_description: Back up the accounting database and slurmctld's state
description:
  - Writes a directory below O(dest), named after the cluster and the time, while Slurm keeps running. The files are
    read back before the backup is complete. A run that is killed leaves no backup.
  - The database is accessed as slurmdbd accesses it, so it may be an external database.
extends_documentation_fragment:
  - hyperpod.lifecycle.attributes
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
options:
  dest:
    description: Directory, or an S3 prefix such as C(s3://bucket/backups), to which the C(aws) command copies.
    type: str
    required: true
  cluster_arn:
    description: ARN of the cluster, which distinguishes clusters of the same name.
    type: str
    required: true
  prefix:
    description: Directory in which Slurm is installed.
    type: path
    default: /opt/slurm
  config_dir:
    description: Directory of slurm.conf and slurmdbd.conf.
    type: path
    default: /opt/slurm/etc
"""

EXAMPLES = r"""
- name: Back up the cluster
  hyperpod.lifecycle.slurm_backup:
    dest: /fsx/backups
    cluster_arn: arn:aws:sagemaker:us-west-2:111122223333:cluster/abcdefghijkl
"""

RETURN = r"""
backup:
  description: Path or URL of the backup.
  type: str
  returned: success
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import backups, s3
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.controller import Controller, now
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.files import refusal
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.leftovers import LARGE, own_folder


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "dest": {"type": "str", "required": True},
            "cluster_arn": {"type": "str", "required": True},
            "prefix": {"type": "path", "default": "/opt/slurm"},
            "config_dir": {"type": "path", "default": "/opt/slurm/etc"},
        },
        supports_check_mode=True,
    )
    dest, arn, created = module.params["dest"].rstrip("/"), module.params["cluster_arn"], now()
    os.umask(0o077)
    try:
        controller = Controller(module.params["prefix"], module.params["config_dir"])
        name = f"{backups.key(controller.cluster, arn)}/{s3.name(created) if s3.is_url(dest) else created}"
        if module.check_mode:
            module.exit_json(changed=True, backup=f"{dest}/{name}")
        if s3.is_url(dest):
            with own_folder("backup", LARGE) as work:
                folder = os.path.join(work, created)
                os.mkdir(folder)
                controller.save(folder, arn, created)
                s3.upload(folder, f"{dest}/{name}")
            backup = f"{dest}/{name}"
        else:
            if not os.path.isabs(dest):
                raise Fault(f"{dest} is neither an absolute path nor s3://…")
            folder = os.path.dirname(f"{dest}/{name}")
            backup = backups.add(folder, created, lambda part: controller.save(part, arn, created))
    except Fault as fault:
        module.fail_json(msg=str(fault))
    except OSError as error:
        module.fail_json(msg=refusal(error.filename or f"{dest}/{name}", error))
    module.exit_json(changed=True, backup=backup)


if __name__ == "__main__":
    main()
