# SPDX-License-Identifier: Apache-2.0
"""EFA for Lustre: prerequisites, and commands for lnetctl. Uses the standard library only."""

from __future__ import annotations

import re

#: Instances with at least this many devices have one bus per four devices.
MANY_DEVICES = 32
EACH = 4


class Unusable(Exception):
    """Why Lustre uses TCP."""


def file_system(dns_name):
    """Return id and region of an FSx DNS name."""
    match = re.fullmatch(r"(fs-[0-9a-f]+)\.fsx\.([a-z0-9-]+)\.amazonaws\.com(\.cn)?", dns_name)
    if not match:
        raise Unusable(f"{dns_name} is no DNS name of FSx")
    return match.group(1), match.group(2)


def subnet(answer):
    """Return the file system's subnet from `aws fsx describe-file-systems`. Raises Unusable if EFA is disabled."""
    (found,) = answer["FileSystems"]
    if not found.get("LustreConfiguration", {}).get("EfaEnabled"):
        raise Unusable("EFA is off in {}".format(found.get("FileSystemId", "the file system")))
    return found["SubnetIds"][0]


def same_zone(answer, zone):
    """Compare the zone in the output of `aws ec2 describe-subnets` with this node's."""
    (found,) = answer["Subnets"]
    if found["AvailabilityZone"] != zone:
        raise Unusable("the file system is in {}, this node in {}".format(found["AvailabilityZone"], zone))


def chosen(devices):
    """Return the devices for Lustre: one per bus if there are many, else the first and the last."""
    devices = sorted(devices)
    return devices[::EACH] if len(devices) >= MANY_DEVICES else sorted({devices[0], devices[-1]})


def interface(routes):
    """Return the interface of the preferred default route in ``/proc/net/route``."""
    rows = [line.split() for line in routes.splitlines()[1:]]
    found = sorted((int(row[6]), row[0]) for row in rows if row[1] == "00000000" and row[7] == "00000000")
    if not found:
        raise Unusable("there is no default route")
    return found[0][1]


def commands(devices, link):
    """Return the commands that make Lustre prefer EFA, in order. TCP remains as the fallback."""
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
    """Return the command that adds LNet's TCP network, which exists if LNet was configured with its defaults."""
    return ["lnetctl", "net", "add", "--net", "tcp", "--if", link]


UNDO = ["lnetctl", "net", "del", "--net", "efa"]


def has_network(shown, name):
    """Return whether the output of ``lnetctl net show`` has this network."""
    return bool(re.search(rf"net type: {name}\b", shown))
