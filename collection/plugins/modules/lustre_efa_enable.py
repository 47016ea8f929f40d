#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# No builtin: kernel modules, devices and the zone of the file system decide together, and no failure may fail a node.
"""Configure Lustre to use EFA if both sides support it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: lustre_efa_enable
short_description: Configure Lustre to use EFA if both sides support it
description:
  - EFA is used if this node has a working EFA provider, the file system has EFA enabled, and both are in the same
    Availability Zone.
  - If a prerequisite is missing, Lustre falls back to TCP and the module reports why. It never fails.
  - Nothing is changed once Lustre is mounted, because that would disconnect it.
extends_documentation_fragment:
  - hyperpod.lifecycle.attributes
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
options:
  dns_name:
    description: DNS names of the Lustre file systems. One that supports EFA is enough.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Set up EFA for Lustre
  hyperpod.lifecycle.lustre_efa_enable:
    dns_name: [fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com]
"""

RETURN = r"""
transport:
  description: V(efa) or V(tcp).
  type: str
  returned: always
note:
  description: Reason for TCP on a node that has EFA, else empty.
  type: str
  returned: always
"""

import json
import os
import subprocess
import urllib.request
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import efa, mounts

PROVIDER = "/opt/amazon/efa/bin/fi_info"
METADATA = "http://169.254.169.254/latest/"
COMMAND_SECONDS = 30


def run(*command):
    """Return a program's output. Raises Unusable if it fails."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/local/bin:/usr/sbin:/sbin"
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**os.environ, "LC_ALL": "C", "PATH": path},
            timeout=COMMAND_SECONDS,
            check=False,
            text=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise efa.Unusable(f"{command[0]}: {error}") from error
    if done.returncode:
        raise efa.Unusable("{}: {}".format(" ".join(command), " ".join(done.stderr.split()) or done.returncode))
    return done.stdout


def metadata(path, method="GET", **headers):
    """Return a value of the instance metadata service."""
    request = urllib.request.Request(METADATA + path, method=method, headers=headers)  # noqa: S310
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=2) as answer:
            return answer.read().decode()
    except OSError as error:
        raise efa.Unusable(f"this node's zone is unknown: {error}") from error


def zone():
    """Return the Availability Zone of this node."""
    token = metadata("api/token", "PUT", **{"X-aws-ec2-metadata-token-ttl-seconds": "60"})
    return metadata("meta-data/placement/availability-zone", **{"X-aws-ec2-metadata-token": token})


def ask(region, *words):
    """Return the JSON output of the AWS CLI."""
    answer = run("aws", *words, "--region", region, "--output", "json")
    try:
        return json.loads(answer)
    except ValueError as error:
        raise efa.Unusable(f"aws {words[0]} {words[1]} answers no JSON") from error


def devices():
    """Return the EFA devices of this node."""
    found = Path("/sys/class/infiniband").glob("*")
    return [path.name for path in found if os.path.basename(os.path.realpath(path / "device/driver")) == "efa"]


def check(dns_name, here):
    """Raise Unusable unless the file system can be reached through EFA from this zone."""
    identity, region = efa.file_system(dns_name)
    try:
        subnet = efa.subnet(ask(region, "fsx", "describe-file-systems", "--file-system-ids", identity))
        efa.same_zone(ask(region, "ec2", "describe-subnets", "--subnet-ids", subnet), here)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise efa.Unusable(f"AWS's answer about {identity} has another form than expected: {error!r}") from error


def check_any(dns_names):
    """Raise Unusable unless one of the file systems can use EFA."""
    here = zone()
    reasons = []
    for name in dns_names:
        try:
            check(name, here)
        except efa.Unusable as reason:
            reasons.append(str(reason))
        else:
            return
    raise efa.Unusable("; ".join(reasons))


def configure(found):
    """Configure LNet. Falls back to TCP if that fails."""
    link = efa.interface(Path("/proc/net/route").read_text(encoding="utf-8"))
    try:
        for command in efa.commands(efa.chosen(found), link):
            run(*command)
            if command == ["lnetctl", "lnet", "configure"] and not efa.has_network(
                run("lnetctl", "net", "show"), "tcp"
            ):
                run(*efa.ensure_tcp(link))
    except efa.Unusable as reason:
        try:
            run(*efa.UNDO)
        except efa.Unusable as second:
            raise efa.Unusable(f"{reason} (and {second})") from second
        raise


def work(module):
    """Return whether LNet was changed. Raises Unusable if it uses TCP."""
    found = devices()
    if not found:
        raise efa.Unusable("this node has no EFA device")
    run(PROVIDER, "-p", "efa")
    if Path("/sys/module/lnet").exists() and efa.has_network(run("lnetctl", "net", "show"), "efa"):
        return False
    check_any(module.params["dns_name"])
    mountinfo = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    if any(mount.kind == "lustre" for mount in mounts.parse(mountinfo)):
        raise efa.Unusable("it was mounted before EFA was set up; unmount it and apply fsx again")
    if not module.check_mode:
        configure(found)
    return True


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"dns_name": {"type": "list", "elements": "str", "required": True}}, supports_check_mode=True
    )
    try:
        changed = work(module)
    except efa.Unusable as reason:
        note = f"Lustre uses TCP, not EFA: {reason}"
        module.exit_json(changed=False, transport="tcp", msg=note, note=note if devices() else "")
    module.exit_json(changed=changed, transport="efa", msg="Lustre uses EFA", note="")


if __name__ == "__main__":
    main()
