#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs out of a downloaded archive."""

from __future__ import annotations

DOCUMENTATION = r"""
module: archive_program
short_description: Take programs out of an archive
description:
  - Finds each program by its name, in whatever folder of the archive it is, and puts it where it should be.
  - A program is there whole or not at all. One that is there is left alone, so its name should have its version.
author: hyperpod-lifecycle maintainers
options:
  archive:
    description: A tar archive or a Debian package; only read if a program is missing.
    type: path
    required: true
  programs:
    description: The names of programs in the archive and their paths on this machine.
    type: dict
    required: true
attributes:
  check_mode:
    support: full
"""

EXAMPLES = r"""
- name: Take the node exporter out of its archive
  hyperpod.lifecycle.archive_program:
    archive: /opt/hyperpod-observability/node_exporter-1.11.1.linux-amd64.tar.gz
    programs:
      node_exporter: /opt/hyperpod-observability/bin/node_exporter-1.11.1
"""

RETURN = r""" # """

import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule


def opened(archive):
    """The archive as a stream of members."""
    if archive.endswith(".deb"):
        command = ["dpkg-deb", "--fsys-tarfile", archive]
        done = subprocess.run(command, capture_output=True, timeout=120, check=False)
        if done.returncode:
            raise tarfile.ReadError(done.stderr.decode(errors="replace").strip())
        return tarfile.open(fileobj=io.BytesIO(done.stdout))
    return tarfile.open(archive)


def put(source, dest):
    """Written beside its place first."""
    dest.parent.mkdir(parents=True, exist_ok=True)
    new = dest.with_name(dest.name + ".new")
    with new.open("wb") as file:
        shutil.copyfileobj(source, file)
        file.flush()
        os.fsync(file.fileno())
    new.chmod(0o755)
    new.rename(dest)


def main():
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "archive": {"type": "path", "required": True},
            "programs": {"type": "dict", "required": True},
        },
        supports_check_mode=True,
    )
    archive = module.params["archive"]
    missing = {name: Path(path) for name, path in module.params["programs"].items() if not os.path.exists(path)}
    if not missing or module.check_mode:
        module.exit_json(changed=bool(missing))
    try:
        with opened(archive) as members:
            for member in members:
                name = os.path.basename(member.name)
                if name in missing and member.isfile():
                    put(members.extractfile(member), missing.pop(name))
    except (OSError, tarfile.TarError, subprocess.TimeoutExpired) as error:
        module.fail_json(msg=f"{archive}: {error}")
    if missing:
        module.fail_json(msg=f"{archive} holds no {', '.join(sorted(missing))}")
    module.exit_json(changed=True)


if __name__ == "__main__":
    main()
