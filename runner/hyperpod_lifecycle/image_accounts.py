# SPDX-License-Identifier: Apache-2.0
"""Accounts that every node has before the cluster's users come: their names and uids are taken."""

from __future__ import annotations

import re

#: Those of the image whose uids are known and the same on every node.
UIDS = {"root": 0, "munge": 991, "slurm": 992, "ubuntu": 1000}
#: Uids below this are Debian's own; those up to 999 go to services, in the order in which these are installed.
FIRST_FREE, FIRST_FOR_USERS = 100, 1000
#: nobody, and what programs take for "no user", in 16 and in 32 bits.
_RESERVED = (65534, 65535, 2**32 - 2, 2**32 - 1)
#: Other accounts and groups: useradd refuses the one, and the other would make a user of a service.
_NAMES = re.compile(
    "_apt|adm|admin|audio|avahi|backup|bin|cdrom|chrony|crontab|daemon|dialout|dip|disk|dnsmasq|docker|fax|floppy|ftp|games|"
    "gnats|input|irc|kmem|kvm|landscape|list|lp|lxd|mail|man|messagebus|mysql|netdev|news|nobody|nogroup|ntp|"
    "nvidia-persistenced|operator|plugdev|pollinate|postfix|prometheus|proxy|render|sasl|sgx|shadow|src|ssh_keys|sshd|"
    "ssl-cert|staff|statd|sudo|sync|sys|syslog|systemd-.*|tape|tcpdump|tss|tty|users|utmp|uucp|uuidd|video|voice|wheel|"
    "www-data"
)


def takes_name(name: str) -> bool:
    """Whether a user cannot have this name. ``ubuntu`` is a user."""
    return bool(_NAMES.fullmatch(name)) or (name in UIDS and name != "ubuntu")


def uid_fault(name: str, uid: int) -> str:
    """Why this uid cannot be this user's, to follow its name in a sentence; empty if it can."""
    if name in UIDS:
        return "" if uid == UIDS[name] else f", which has {UIDS[name]} on the image"
    owner = next((other for other, number in UIDS.items() if number == uid), None)
    if owner:
        return f" is that of {owner} on the image"
    if uid < FIRST_FREE:
        return " is one of Debian's own accounts"
    return " is not for a user" if uid in _RESERVED or uid >= 2**32 else ""
