# SPDX-License-Identifier: Apache-2.0
"""Configuration of Docker and containerd as text. Standard library only: it runs on the node."""

from __future__ import annotations

import json
import re

from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault

#: Where Docker keeps its data if nobody says otherwise.
DATA_ROOT = "/var/lib/docker"
CONTAINERD_ROOT = "/var/lib/containerd"

_TABLE = re.compile(r"^\s*\[")
_ROOT = re.compile(r"^\s*root\s*=\s*(['\"])(.*)\1\s*(#.*)?$")


def parse(text):
    """The settings in a daemon.json; a file without contents has none. Fault if dockerd could not read it."""
    if not text.strip():
        return {}
    try:
        found = json.loads(text, object_pairs_hook=_no_twins)
    except ValueError as error:
        raise Fault(f"it is no valid JSON ({error})") from error
    if not isinstance(found, dict):
        raise Fault("it holds no JSON object")
    return found


def _no_twins(pairs):
    """An object each of whose keys is there once: of two, nobody knows which is meant."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [key for key, _value in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)} is there twice")
    return found


def merged(there, settings):
    """`there` with `settings` in it; all else stays, also inside objects."""
    result = dict(there)
    for key, value in settings.items():
        both = isinstance(value, dict) and isinstance(there.get(key), dict)
        result[key] = merged(there[key], value) if both else value
    return result


def daemon_settings(there, disk, data_root, defaults, settings):
    """The daemon.json there should be. `disk` is the mount point for container data; empty: the root disk.

    A data root that is on that disk already stays, and so does any where there is no disk but the root disk.
    """
    result = merged(defaults, there)
    if disk and not inside(there.get("data-root", DATA_ROOT), disk):
        result["data-root"] = data_root
    return merged(result, settings)


def inside(path, folder):
    """Is `path` below `folder`?"""
    return path.startswith(folder.rstrip("/") + "/")


def dumped(settings):
    """A daemon.json."""
    return json.dumps(settings, indent=4) + "\n"


def containerd_root(text):
    """The root that a config.toml of containerd names; None if it names none."""
    for line in text.splitlines():
        if _TABLE.match(line):
            break
        match = _ROOT.match(line)
        if match:
            return match[2]
    return None


def with_containerd_root(text, root):
    """A config.toml of containerd with this root; every other line stays."""
    lines = text.splitlines() or ["version = 2"]
    wanted = f"root = {json.dumps(root)}"
    tables = [number for number, line in enumerate(lines) if _TABLE.match(line)]
    end = tables[0] if tables else len(lines)
    there = [number for number in range(end) if _ROOT.match(lines[number])]
    if there:
        lines[there[0]] = wanted
    else:
        # A key that comes after a table would belong to it.
        lines.insert(end, wanted)
    return "\n".join(lines) + "\n"
