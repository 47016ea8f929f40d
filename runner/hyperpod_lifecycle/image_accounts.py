# SPDX-License-Identifier: Apache-2.0
"""Accounts of HyperPod's images, whose names and uids users cannot have."""

from __future__ import annotations

import re

#: Accounts with the same uid on every image.
UIDS = {"root": 0, "munge": 991, "slurm": 992, "ubuntu": 1000}
#: Uids below FIRST_FREE are reserved by Debian; those below FIRST_FOR_USERS are assigned to services as these are
#: installed.
FIRST_FREE, FIRST_FOR_USERS = 100, 1000
#: nobody, and -1 and -2 as unsigned 16-bit and 32-bit numbers.
_RESERVED = (65534, 65535, 2**32 - 2, 2**32 - 1)
#: Other accounts and groups of the images and of common services.
_NAMES = re.compile(
    "_apt|adm|admin|audio|avahi|backup|bin|cdrom|chrony|crontab|daemon|dialout|dip|disk|dnsmasq|docker|fax|floppy|ftp|games|"
    "gnats|input|irc|kmem|kvm|landscape|list|lp|lxd|mail|man|messagebus|mysql|netdev|news|nobody|nogroup|ntp|"
    "nvidia-persistenced|operator|plugdev|pollinate|postfix|prometheus|proxy|render|sasl|sgx|shadow|src|ssh_keys|sshd|"
    "ssl-cert|staff|statd|sudo|sync|sys|syslog|systemd-.*|tape|tcpdump|tss|tty|users|utmp|uucp|uuidd|video|voice|wheel|"
    "www-data"
)


def takes_name(name: str) -> bool:
    """Return whether users cannot have this name. ``ubuntu`` is an ordinary user."""
    return bool(_NAMES.fullmatch(name)) or (name in UIDS and name != "ubuntu")


def uid_fault(name: str, uid: int) -> str:
    """Return why this user cannot have this uid, as the end of a sentence, or ""."""
    if name in UIDS:
        return "" if uid == UIDS[name] else f", which has {UIDS[name]} on the image"
    owner = next((other for other, number in UIDS.items() if number == uid), None)
    if owner:
        return f" is that of {owner} on the image"
    if uid < FIRST_FREE:
        return " is one of Debian's own accounts"
    return " is not for a user" if uid in _RESERVED or uid >= 2**32 else ""
