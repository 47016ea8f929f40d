# SPDX-License-Identifier: Apache-2.0
"""Where Slurm is told of Pyxis, and whether it can load it. Standard library only: it runs on the node."""

from __future__ import annotations

import glob
import json
import os
import re
from pathlib import Path

from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import run
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.leftovers import own_folder

#: An option that only Pyxis has.
OPTION = "--container-image"
PLUGIN = "spank_pyxis.so"

_LINE = re.compile(r"^\s*(required|optional|include)\s+(\S+)", re.IGNORECASE)
#: As little as srun needs to say what options it has.
_SLURM_CONF = "ClusterName=probe\nSlurmctldHost=localhost\nAuthType=auth/munge\nNodeName=localhost\n"


def registered(plugstack):
    """The files of Pyxis that this plugstack.conf names, itself or through what it includes."""
    found, seen, waiting = [], set(), [plugstack]
    while waiting:
        path = waiting.pop(0)
        if path in seen or not os.path.isfile(path):
            continue
        seen.add(path)
        for line in Path(path).read_text(encoding="utf-8", errors="replace").splitlines():
            match = _LINE.match(line)
            if match and match[1].lower() == "include":
                waiting += sorted(glob.glob(os.path.join(os.path.dirname(path), match[2])))
            elif match and os.path.basename(match[2]) == PLUGIN:
                found.append(match[2])
    return list(dict.fromkeys(found))


def loads(plugin, prefix):
    """Empty if the Slurm in use loads this plugin, else what it says. No daemon and no file of Slurm's is touched."""
    with own_folder("srun") as folder:
        return missing_option(_alone(folder, prefix, "--help", f"required {plugin}\n"))


def slurm_version(prefix):
    """The version of the Slurm in use; empty if it does not say."""
    with own_folder("srun") as folder:
        return run(_alone(folder, prefix, "--version", ""), 60)[1].strip().rpartition(" ")[2]


def _alone(folder, prefix, option, plugstack):
    """An `srun` that needs no cluster: a node whose daemon has not run yet has no configuration."""
    Path(folder, "slurm.conf").write_text(_SLURM_CONF, encoding="ascii")
    Path(folder, "plugstack.conf").write_text(plugstack, encoding="utf-8")
    return ["env", f"SLURM_CONF={folder}/slurm.conf", f"{prefix}/bin/srun", option]


def missing_option(command):
    """Empty if the output of this `srun --help` has Pyxis' option, else what it says."""
    status, out, err = run(command, 60)
    if OPTION in out:
        return ""
    return err or f"srun --help ends with {status} and has no {OPTION}"


def stamp(slurm, checksum, digest):
    """What a built plugin was made of and for."""
    return json.dumps({"slurm": slurm, "source": checksum, "plugin": digest}, sort_keys=True) + "\n"
