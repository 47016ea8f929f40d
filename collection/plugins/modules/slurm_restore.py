#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# No builtin: a restore that would lose data is refused, and the next run completes one that was killed.
"""Restore the accounting database and slurmctld's state from a backup."""

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_restore
short_description: Restore the accounting database and slurmctld's state
description:
  - Everything is checked before anything changes. The present state is first backed up below O(keep_dir), and is
    restored if the database does not accept the backup. Slurm's daemons are stopped during the restore. Running jobs
    continue.
  - A run that is killed must be run again. It starts fresh.
extends_documentation_fragment:
  - hyperpod.lifecycle.attributes
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
options:
  source:
    description:
      - A backup, or the location that holds this cluster's backups, as a directory or an S3 prefix such as
        C(s3://bucket/backups).
    type: str
    required: true
  replace_newer:
    description: Restore even if newer jobs, or other clusters in the database, are lost.
    type: bool
    default: false
  cluster_arn:
    description: ARN of the cluster, which distinguishes clusters of the same name.
    type: str
    required: true
  keep_dir:
    description: Directory for the backup of the present state.
    type: path
    default: /var/lib/hyperpod-lifecycle/before-restore
  prefix:
    description: Directory in which Slurm is installed.
    type: path
    default: /opt/slurm
  config_dir:
    description: Directory of slurm.conf and slurmdbd.conf.
    type: path
    default: /opt/slurm/etc
  wait_seconds:
    description: Seconds to wait for each daemon to answer after the restore.
    type: int
    default: 90
"""

EXAMPLES = r"""
- name: Restore the newest backup
  hyperpod.lifecycle.slurm_restore:
    source: /fsx/backups
    cluster_arn: arn:aws:sagemaker:us-west-2:111122223333:cluster/abcdefghijkl
"""

RETURN = r"""
backup:
  description: The backup that was restored.
  type: str
  returned: success
kept:
  description: Backup of the state before the restore.
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


def check(manifest, where, controller, replace_newer):
    """Raise Fault if the backup cannot or should not be restored here."""
    present = {"jobs": controller.jobs_since(manifest["created"]), "clusters": []}
    if controller.database:
        present["clusters"] = controller.clusters()
    never, lost = backups.obstacles(manifest, controller.cluster, controller.slurm, present)
    if bool(controller.database) != (backups.DATABASE in manifest["files"]):
        has, lacks = ("the backup", "this controller") if not controller.database else ("this controller", "the backup")
        never.append(f"{has} has an accounting database and {lacks} has none; see accounting_enabled")
    for daemon, others in (("slurmctld", controller.others_up()), ("slurmdbd", controller.dbds_up())):
        if others:
            never.append(
                f"another controller's {daemon} is up, stop it first: systemctl stop {daemon} on "
                f"{', '.join(sorted(others))}"
            )
    if never:
        raise Fault(f"{where} cannot be restored here: {'; '.join(never)}")
    if lost and not replace_newer:
        raise Fault(
            f"to restore {where} would lose {', and '.join(lost)}; if that is what you want: --replace-newer (what is "
            "there now is backed up first)"
        )


def keep(controller, folder, arn):
    """Back up the present state."""
    name = now()
    return backups.add(folder, name, lambda part: controller.save(part, arn, name))


def restore(wanted, work, check_mode):
    """Restore, with a temporary directory for downloads. Return the backup, and the backup of the previous state."""
    source, arn = wanted["source"].rstrip("/"), wanted["cluster_arn"]
    controller = Controller(wanted["prefix"], wanted["config_dir"])
    if s3.is_url(source):
        where, folder = s3.choose(source, controller.cluster, arn, os.path.join(work, "s3"))
    else:
        where = folder = backups.choose(source, controller.cluster, arn)
    manifest = backups.read(folder)
    check(manifest, where, controller, wanted["replace_newer"])
    if check_mode:
        return where, wanted["keep_dir"]
    ran = controller.stop()
    try:
        with controller.alone():
            kept = keep(controller, wanted["keep_dir"], arn)
            try:
                controller.bring(folder)
            except (Fault, OSError) as fault:
                controller.bring(kept)
                said = refusal(fault.filename or folder, fault) if isinstance(fault, OSError) else fault
                raise Fault(f"{said}; all is as it was before") from fault
    finally:
        controller.start(ran, wanted["wait_seconds"])
    return where, kept


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "source": {"type": "str", "required": True},
            "replace_newer": {"type": "bool", "default": False},
            "cluster_arn": {"type": "str", "required": True},
            "keep_dir": {"type": "path", "default": "/var/lib/hyperpod-lifecycle/before-restore"},
            "prefix": {"type": "path", "default": "/opt/slurm"},
            "config_dir": {"type": "path", "default": "/opt/slurm/etc"},
            "wait_seconds": {"type": "int", "default": 90},
        },
        supports_check_mode=True,
    )
    os.umask(0o077)
    try:
        with own_folder("restore", LARGE) as work:
            where, kept = restore(module.params, work, module.check_mode)
    except Fault as fault:
        module.fail_json(msg=str(fault))
    except OSError as error:
        module.fail_json(msg=refusal(error.filename or module.params["keep_dir"], error))
    module.exit_json(changed=True, backup=where, kept=kept)


if __name__ == "__main__":
    main()
