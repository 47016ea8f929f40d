#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# Not community.general.make: a new plugin is loaded into srun before it replaces the one in use.
"""Build Pyxis for the installed Slurm."""

from __future__ import annotations

DOCUMENTATION = r"""
module: pyxis_build
short_description: Build Pyxis for the installed Slurm
description:
  - The image's plugin is kept if this Slurm loads it. If it does not, because Slurm has changed, it is rebuilt.
  - A new plugin is loaded into C(srun) before it is installed, so that no daemon encounters a plugin that it cannot
    load. The file that running jobs have open is not changed.
  - Without O(source) nothing is built, and RV(needed) tells whether a build is needed.
extends_documentation_fragment:
  - hyperpod.lifecycle.attributes
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
options:
  plugstack:
    description: Slurm's C(plugstack.conf) on this node.
    type: path
    required: true
  include:
    description: File for the line that loads the plugin, if no other file has it.
    type: path
    required: true
  prefix:
    description: Directory in which Slurm is installed, with its headers in C(include).
    type: path
    required: true
  root:
    description: Installation prefix of Pyxis, as for C(make install).
    type: path
    default: /usr/local
  checksum:
    description: Checksum of the source. A plugin built from another one is rebuilt.
    type: str
    required: true
  source:
    description: Archive with the source.
    type: path
  build_seconds:
    description: Seconds that the build may take.
    type: int
    default: 300
"""

EXAMPLES = r"""
- name: Build Pyxis
  hyperpod.lifecycle.pyxis_build:
    plugstack: /opt/slurm/etc/plugstack.conf
    include: /opt/slurm/etc/plugstack.conf.d/pyxis.conf
    prefix: /opt/slurm
    checksum: sha256:9c4cdb79a67301d8ea05951aa4d2c205f40cf6145e338214b0191add8b36d6c4
    source: /var/cache/hyperpod-lifecycle/pyxis-0.24.0.tar.gz
"""

RETURN = r"""
needed:
  description: Whether a build is needed.
  type: bool
  returned: success
plugin:
  description: Path of the plugin.
  type: str
  returned: success
include:
  description: File that C(plugstack.conf) must include to load the plugin. Empty if it does so already.
  type: str
  returned: success
"""

import hashlib
import os
import shutil
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import pyxis
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault, run
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.files import make_folder, replace, writing
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.leftovers import own_folder


def digest(path):
    """SHA-256 of a file; empty if there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def build(source, prefix, root, stage, seconds):
    """The plugin, built below `stage` and loaded once. Fault if that does not go."""
    # It writes nothing outside of the folder, which Python's own does only since 3.11.4.
    status, _out, err = run(
        ["tar", "--extract", "--no-same-owner", f"--file={source}", f"--directory={stage}"], seconds
    )
    if status:
        raise Fault(f"{source} cannot be unpacked: {err}")
    folders = [path for path in stage.iterdir() if (path / "Makefile").is_file()]
    if len(folders) != 1:
        raise Fault(f"{source} is no source of Pyxis: it has no folder with a Makefile")
    words = [f"DESTDIR={stage}/installed", f"prefix={root}"]
    compiler = ["env", f"CPPFLAGS=-I{prefix}/include", "make", f"--directory={folders[0]}"]
    for target in ("all", "install"):
        status, out, err = run([*compiler, target, *words], seconds)
        if status:
            last = "\n".join((out + err).splitlines()[-8:])
            raise Fault(f"Pyxis cannot be built against {prefix}/include: make {target} ends with {status}: {last}")
    plugin = Path(f"{stage}/installed{root}/lib/slurm/{pyxis.PLUGIN}")
    said = pyxis.loads(plugin, prefix)
    if said:
        raise Fault(f"Slurm does not load the Pyxis that was built against {prefix}/include: {said}")
    return plugin


def put(built, plugin):
    """In place of the old one at once."""
    make_folder(plugin.parent)
    with writing(plugin):
        new = plugin.with_name(f".{plugin.name}.new")
        shutil.copyfile(built, new)
        new.chmod(0o755)
        new.rename(plugin)


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "plugstack": {"type": "path", "required": True},
            "include": {"type": "path", "required": True},
            "prefix": {"type": "path", "required": True},
            "root": {"type": "path", "default": "/usr/local"},
            "checksum": {"type": "str", "required": True},
            "source": {"type": "path"},
            "build_seconds": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    params = module.params
    prefix, root, source, include = (params[key] for key in ("prefix", "root", "source", "include"))
    own = Path(root, "lib/slurm", pyxis.PLUGIN)
    reached = pyxis.registered(params["plugstack"])
    named = reached or pyxis.registered(include)
    plugin = Path(named[0]) if named else own
    stamp = Path(root, "share/pyxis/hyperpod-lifecycle.json")
    kept = stamp.read_text(encoding="utf-8") if stamp.exists() else ""
    slurm = pyxis.slurm_version(prefix)
    if not slurm:
        module.fail_json(
            msg=f"{prefix}/bin/srun does not say its version; containers_slurm_prefix is not where Slurm is"
        )
    ours = kept == pyxis.stamp(slurm, params["checksum"], digest(plugin))
    theirs = bool(named) and not kept and plugin.exists()
    needed = not ours and not (theirs and not pyxis.loads(plugin, prefix))
    if needed and source and not module.check_mode:
        try:
            # Beside the source, since what is built is also loaded: /tmp may be mounted noexec.
            with own_folder("pyxis", os.path.dirname(source)) as stage:
                put(build(source, prefix, root, Path(stage), params["build_seconds"]), plugin)
        except (Fault, OSError) as fault:
            module.fail_json(msg=f"{fault}. What was there is as it was")
        replace(module, stamp, kept, pyxis.stamp(slurm, params["checksum"], digest(plugin)), 0o644)
    line = f"required {plugin}\n"
    before = Path(include).read_text(encoding="utf-8") if os.path.exists(include) else ""
    write = source is not None and not named and before != line
    if write:
        replace(module, include, before, line, 0o644)
    module.exit_json(
        changed=bool(source) and (needed or write),
        needed=needed,
        plugin=str(plugin),
        include="" if reached else include,
        msg=f"Pyxis for Slurm {slurm}: {'to be built' if needed else 'is there'}",
    )


if __name__ == "__main__":
    main()
