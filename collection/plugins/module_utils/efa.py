# SPDX-License-Identifier: Apache-2.0
"""EFA for Lustre: who can use it, and what lnetctl is told. Standard library only: it runs on the node."""

from __future__ import annotations

import re

#: Instances with so many devices have a bus for each four.
MANY_DEVICES = 32
EACH = 4


class Unusable(Exception):
    """Why Lustre stays with TCP."""


def file_system(dns_name):
    """The id and the region in an FSx DNS name."""
    match = re.fullmatch(r"(fs-[0-9a-f]+)\.fsx\.([a-z0-9-]+)\.amazonaws\.com(\.cn)?", dns_name)
    if not match:
        raise Unusable(f"{dns_name} is no DNS name of FSx")
    return match.group(1), match.group(2)


def subnet(answer):
    """The subnet of the file system in an answer of `aws fsx describe-file-systems`, if EFA is on."""
    (found,) = answer["FileSystems"]
    if not found.get("LustreConfiguration", {}).get("EfaEnabled"):
        raise Unusable("EFA is off in {}".format(found.get("FileSystemId", "the file system")))
    return found["SubnetIds"][0]


def same_zone(answer, zone):
    """Compare the zone in an answer of `aws ec2 describe-subnets` with this node's."""
    (found,) = answer["Subnets"]
    if found["AvailabilityZone"] != zone:
        raise Unusable("the file system is in {}, this node in {}".format(found["AvailabilityZone"], zone))


def chosen(devices):
    """The devices for Lustre: one for each bus where there are many, else the first and the last."""
    devices = sorted(devices)
    return devices[::EACH] if len(devices) >= MANY_DEVICES else sorted({devices[0], devices[-1]})


def interface(routes):
    """The interface of the best default route in the text of ``/proc/net/route``."""
    rows = [line.split() for line in routes.splitlines()[1:]]
    found = sorted((int(row[6]), row[0]) for row in rows if row[1] == "00000000" and row[7] == "00000000")
    if not found:
        raise Unusable("there is no default route")
    return found[0][1]


def commands(devices, link):
    """What makes Lustre prefer EFA, in order. TCP stays for what EFA does not reach."""
    return [
        ["modprobe", "lnet"],
        ["modprobe", "kefalnd", f"ipif_name={link}"],
        ["modprobe", "ksocklnd"],
        ["lnetctl", "lnet", "configure"],
        *(["lnetctl", "net", "add", "--net", "efa", "--if", device, "--peer-credits", "32"] for device in devices),
        ["lnetctl", "set", "discovery", "1"],
        ["lnetctl", "udsp", "add", "--src", "efa", "--priority", "0"],
    ]


def ensure_tcp(link):
    """LNet's TCP network is there already when LNet was configured by its defaults."""
    return ["lnetctl", "net", "add", "--net", "tcp", "--if", link]


UNDO = ["lnetctl", "net", "del", "--net", "efa"]


def has_network(shown, name):
    """Does the output of ``lnetctl net show`` have this network?"""
    return bool(re.search(rf"net type: {name}\b", shown))
