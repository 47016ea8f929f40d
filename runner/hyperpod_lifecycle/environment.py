# SPDX-License-Identifier: Apache-2.0
"""The environment that Ansible and every task run in."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hyperpod_lifecycle import inputs, processes

#: Variables of the caller's environment that are passed to Ansible and every task.
KEPT_ENVIRONMENT = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "TZ")

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def clean_environment(private: Path, collections: Path | None, connection: str) -> dict[str, str]:
    """Return the environment of Ansible and its tasks, and create an empty ``ansible.cfg`` in `private`.

    Of the caller's environment it has proxies and time zone only. `collections` is the directory of an uninstalled
    collection, or None; `connection` is ``warm`` or ``local``.
    """
    home = private / "home"
    configuration = private / "ansible.cfg"
    configuration.touch(mode=0o600)  # keeps Ansible from reading the node's or the user's
    return {
        **{name: os.environ[name] for name in KEPT_ENVIRONMENT if name in os.environ},
        "PATH": SYSTEM_PATH,
        "HOME": _home(),
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        processes.MARK: str(private),
        # Messages quote journals and logs from here on.
        "HYPERPOD_LIFECYCLE_STARTED": str(int(time.time())),
        "ANSIBLE_CONFIG": str(configuration),
        "ANSIBLE_HOME": str(home),
        "ANSIBLE_LOCAL_TEMP": str(home / "tmp"),
        "ANSIBLE_REMOTE_TEMP": str(home / "tmp"),
        "ANSIBLE_ASYNC_DIR": str(home / "async"),
        # A collection in ~/.ansible must not take precedence.
        "ANSIBLE_COLLECTIONS_PATH": str(collections or home / "collections"),
        "ANSIBLE_INVENTORY_ENABLED": inputs.PLUGIN,
        "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true",
        "ANSIBLE_INJECT_FACT_VARS": "false",
        "ANSIBLE_PIPELINING": "false" if connection == "local" else "true",
        "ANSIBLE_NOCOLOR": "true",
    }


def _home() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:  # a plan in a container, as a user without a name
        return "/"


@contextmanager
def only(variables: Mapping[str, str]) -> Iterator[None]:
    """Replace the environment by `variables`: ansible-runner passes on all of it and writes it to a file."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    """Set the umask, so that tasks create files with the usual modes whatever the caller's umask."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
