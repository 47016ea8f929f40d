#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# Not a lookup: the secret goes from AWS into a file with mode 0600, and never through Ansible's arguments or facts.
"""Fetch the external database password from Secrets Manager, or check a file on the node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: database_password_fetch
short_description: Fetch the external database password
description:
  - With O(secret_arn), the secret is fetched with the AWS CLI and its password stored in O(path), which root owns and
    which is created with mode 0600. The password is stored nowhere else. If the secret changes, the file is updated.
  - Without it, O(path) is a file that an administrator has created for root only.
  - The region is that of the secret's ARN, not the cluster's. The CLI determines the partition.
  - A password that C(slurmdbd.conf) cannot hold is an error.
extends_documentation_fragment:
  - hyperpod.lifecycle.attributes
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
options:
  path:
    description: File with the password.
    type: path
    required: true
  secret_arn:
    description:
      - ARN of the secret, either a JSON object with C(password) and optionally C(username), or the plain password.
    type: str
    default: ""
  aws:
    description: Name or path of the AWS CLI.
    type: str
    default: aws
  wait_seconds:
    description: Seconds to wait for the AWS CLI.
    type: int
    default: 60
"""

EXAMPLES = r"""
- name: Fetch the external database password
  hyperpod.lifecycle.database_password_fetch:
    path: /etc/hyperpod-lifecycle/secrets/slurmdbd-external
    secret_arn: arn:aws:secretsmanager:us-west-2:111122223333:secret:otter-db-AbCdEf
"""

RETURN = r"""
user:
  description: Database user that the secret names. Empty if it names none.
  type: str
  returned: success
"""

import json
import os
import re
import stat
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import accounting
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault, run
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.files import make_folder, write_owned
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.mariadb import read_password

#: Error codes of the AWS CLI, and remedies.
REMEDIES = {
    "AccessDenied": "The role of this instance group needs secretsmanager:GetSecretValue on it",
    "ResourceNotFound": "Correct accounting_external_secret_arn: there is no such secret in this account and region",
    "[Uu]nable to locate credentials|ExpiredToken|InvalidClientToken": "The node has no valid credentials of its role; "
    "see that the CLI works as root, and that there is no /root/.aws",
    "Could not connect|[Tt]imed? ?out|no end within": "The node needs a way to Secrets Manager: a NAT gateway, or a "
    "VPC endpoint whose security group admits it",
}


def fetch(arn, aws, seconds):
    """Return user and password of a secret."""
    region = accounting.region(arn)
    if region is None:
        raise Fault(f"{arn!r} is not the ARN of a secret, such as arn:aws:secretsmanager:REGION:ACCOUNT:secret:NAME")
    words = ["secretsmanager", "get-secret-value", "--secret-id", arn, "--region", region, "--output", "json"]
    status, out, err = run([aws, *words], seconds)
    if status == 127:
        raise Fault(
            f"there is no AWS CLI {aws!r} on this node, which fetches the database's password: install it, name it in "
            "accounting_aws, or put the password into a file and name that in accounting_external_password_file"
        )
    if status:
        said = " ".join(err.split()) or f"aws ended with {status}"
        remedy = next((remedy for words, remedy in REMEDIES.items() if re.search(words, said)), "")
        raise Fault(f"the secret {arn} cannot be read: {said}" + (f". {remedy}" if remedy else ""))
    try:
        text = json.loads(out)["SecretString"]
    except (ValueError, KeyError, TypeError):
        raise Fault(f"the secret {arn} holds no text") from None
    found = accounting.secret_words(text)
    if found is None:
        raise Fault(f"the secret {arn} is a JSON object without a string in password")
    return found


def kept(path):
    """Return the password in a file, None if it is missing. Raises Fault if users other than root could access it."""
    if not os.path.lexists(path):
        return None
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode) or found.st_uid != 0 or stat.S_IMODE(found.st_mode) & 0o077:
        raise Fault(f"{path} must be a regular file that only root can read: chown root {path}; chmod 600 {path}")
    return read_password(path)


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "secret_arn": {"type": "str", "default": "", "no_log": False},
            "aws": {"type": "str", "default": "aws"},
            "wait_seconds": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    path, arn = Path(module.params["path"]), module.params["secret_arn"]
    user = ""
    try:
        before = password = kept(path)
        if arn:
            user, password = fetch(arn, module.params["aws"], module.params["wait_seconds"])
        elif password is None:
            raise Fault(f"accounting_external_password_file: there is no {path} on this node")
        module.no_log_values.add(password)
        reason = accounting.unfit(password)
        if reason:
            raise Fault(f"the password in {arn or path} cannot be in slurmdbd.conf: {reason}. Change the password")
        changed = password != before
        if changed and not module.check_mode:
            make_folder(path.parent, 0o700)
            write_owned(path, password + "\n", 0, 0, 0o600)
    except (Fault, OSError) as fault:
        module.fail_json(msg=str(fault))
    module.exit_json(changed=changed, user=user)


if __name__ == "__main__":
    main()
