# SPDX-License-Identifier: Apache-2.0
"""Directories in S3, through the image's AWS CLI. Uses the standard library only."""

from __future__ import annotations

import os
import re
import socket

from ansible_collections.hyperpod.lifecycle.plugins.module_utils import backups
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault, run

SECONDS = 3600


def is_url(place):
    """Return whether a location is in S3."""
    return place.startswith("s3://")


def name(created):
    """Return the name of a backup in S3, with this host's: S3 does not refuse one that another controller has taken."""
    return f"{created}-{re.sub(r'[^A-Za-z0-9-]', '-', socket.gethostname())}"


def _aws(*words):
    status, said, errors = run(["aws", "s3", *words], SECONDS)
    if status == 127:
        raise Fault("the aws command is not installed; the HyperPod image has it, elsewhere install the AWS CLI")
    if status:
        urls = " ".join(word for word in words if is_url(word))
        raise Fault(f"aws s3 {words[0]} {urls}: {(errors or said).strip()[-600:]}")
    return said


def upload(folder, url):
    """Upload a backup, its manifest last, so that an incomplete one does not count. Then download and check it."""
    names = sorted(os.listdir(folder), key=lambda name: name == backups.MANIFEST)
    for name in names:
        _aws("cp", "--only-show-errors", f"{folder}/{name}", f"{url}/{name}")
    again = f"{folder}.again"
    download(url, again)
    backups.read(again)


def download(url, folder):
    """Download everything below a prefix into a new directory."""
    os.mkdir(folder)
    _aws("cp", "--only-show-errors", "--recursive", f"{url}/", folder)


def choose(place, cluster, arn, folder):
    """Select a backup in S3 as :func:`backups.choose` does, by downloading the manifests first, then the backup."""
    index = f"{folder}/index"
    os.makedirs(index)
    only = ["--exclude", "*", "--include", f"*{backups.MANIFEST}"]
    _aws("cp", "--only-show-errors", "--recursive", *only, f"{place}/", index)
    found = os.path.relpath(backups.choose(index, cluster, arn), index)
    url = place if found == "." else f"{place}/{found}"
    download(url, f"{folder}/backup")
    return url, f"{folder}/backup"
