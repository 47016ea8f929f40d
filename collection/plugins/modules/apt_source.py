#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""A package repository whose key is known beforehand."""

from __future__ import annotations

DOCUMENTATION = r"""
module: apt_source
short_description: A package repository that is signed with one known key
description:
  - The key is downloaded once and must have O(fingerprint), and no other key may be with it. Only then apt is told of
    the repository, and trusts this key for this repository alone.
  - A repository that another file names already stays as it is, because apt refuses one that is named with two keys.
author: hyperpod-lifecycle maintainers
options:
  name:
    description: What the files are called.
    type: str
    required: true
  uri:
    description: The repository.
    type: str
    required: true
  suite:
    description: The suite; empty for the code name of this node's release. One that ends with a slash is a folder.
    type: str
    default: ""
  components:
    description: Its components; none for a suite that is a folder.
    type: list
    elements: str
    default: []
  key_url:
    description: Where the key is.
    type: str
    required: true
  fingerprint:
    description: Its fingerprint, 40 hexadecimal digits; blanks do not count.
    type: str
    required: true
  attempts:
    description: How often the key is tried.
    type: int
    default: 4
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
"""

EXAMPLES = r"""
- name: Use Docker's repository
  hyperpod.lifecycle.apt_source:
    name: docker
    uri: https://download.docker.com/linux/ubuntu
    components: [stable]
    key_url: https://download.docker.com/linux/ubuntu/gpg
    fingerprint: 9DC858229FC7DD38854AE2D88D81803C0EBFCD88
"""

RETURN = r""" # """

from pathlib import Path
from urllib.error import HTTPError

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.urls import open_url
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import openpgp
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.files import difference, replace
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.waits import pause

SOURCES = Path("/etc/apt/sources.list.d")
KEYRINGS = Path("/etc/apt/keyrings")
OS_RELEASE = Path("/etc/os-release")
PAUSE_SECONDS = 2
DOWNLOAD_SECONDS = 30
#: Answers of a server that another request does not change.
REFUSALS = (401, 403, 404, 410)


def is_key(data, fingerprint):
    """Is it this key and nothing else?"""
    try:
        return openpgp.fingerprints(data) == [fingerprint]
    except ValueError:
        return False


def download(url, attempts):
    """The bytes at a URL."""
    for attempt in range(attempts):
        try:
            return open_url(url, timeout=DOWNLOAD_SECONDS).read()
        except HTTPError as error:
            fault = f"{url}: {error}"
            if error.code in REFUSALS:
                raise Fault(
                    f"the key of the repository cannot be had: {fault}; correct the URL, or get access"
                ) from error
        except OSError as error:
            fault = f"{url}: {error}"
        if attempt < attempts - 1:
            pause(PAUSE_SECONDS * 2**attempt)
    raise Fault(f"the key of the repository cannot be had, {attempts} times: {fault}")


def code_name():
    """The code name of this node's release."""
    for line in OS_RELEASE.read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition("=")
        if key == "VERSION_CODENAME":
            return value.strip("\"'")
    raise Fault(f"{OS_RELEASE} has no VERSION_CODENAME; name the suite")


def named_elsewhere(uri, own):
    """The file that names the repository already, or None."""
    for path in [
        SOURCES.with_name("sources.list"),
        *sorted(SOURCES.glob("*.list")),
        *sorted(SOURCES.glob("*.sources")),
    ]:
        if path == own or not path.is_file():
            continue
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        if any(uri.rstrip("/") in line for line in lines if not line.lstrip().startswith("#")):
            return path
    return None


def source(uri, suite, components, keyring):
    """A file of sources.list.d."""
    lines = ["# Written by hyperpod-lifecycle.", "Types: deb", f"URIs: {uri}", f"Suites: {suite}"]
    lines += [f"Components: {' '.join(components)}"] if components else []
    return "\n".join([*lines, f"Signed-By: {keyring}", ""])


def main():
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "uri": {"type": "str", "required": True},
            "suite": {"type": "str", "default": ""},
            "components": {"type": "list", "elements": "str", "default": []},
            "key_url": {"type": "str", "required": True, "no_log": False},
            "fingerprint": {"type": "str", "required": True},
            "attempts": {"type": "int", "default": 4},
        },
        supports_check_mode=True,
    )
    params = module.params
    fingerprint = params["fingerprint"].replace(" ", "").upper()
    keyring, path = KEYRINGS / f"{params['name']}.asc", SOURCES / f"{params['name']}.sources"
    other = named_elsewhere(params["uri"], path)
    if other:
        module.exit_json(changed=False, msg=f"{other} names it already")
    there = keyring.read_bytes() if keyring.exists() else b""
    new_key = not is_key(there, fingerprint)
    try:
        after = source(params["uri"], params["suite"] or code_name(), params["components"], keyring)
        if new_key and not module.check_mode:
            data = download(params["key_url"], params["attempts"])
            if not is_key(data, fingerprint):
                raise Fault(
                    f"what is at {params['key_url']} is not the one key {fingerprint}; if there is a new key, "
                    "set its fingerprint. Nothing was changed"
                )
            KEYRINGS.mkdir(mode=0o755, exist_ok=True)
            new = keyring.with_name(keyring.name + ".new")
            new.write_bytes(openpgp.armoured(data))
            new.chmod(0o644)
            new.rename(keyring)
    except Fault as fault:
        module.fail_json(msg=str(fault))
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    changed = replace(module, path, before, after, 0o644)
    module.exit_json(
        changed=changed or new_key,
        diff=difference(path, before, after),
    )


if __name__ == "__main__":
    main()
