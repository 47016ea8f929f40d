# SPDX-License-Identifier: Apache-2.0
"""A lab's own network: a /16 that nothing on this machine uses."""

from __future__ import annotations

import fcntl
import ipaddress
import subprocess
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from hyperpod_lab import addresses
from hyperpod_lab.errors import LabError
from hyperpod_lab.podman import Podman


class Network:
    """The network of one lab, by its name."""

    def __init__(self, name: str, label: str, state_root: Path, podman: Podman) -> None:
        self.name = name
        self._label, self._state_root, self._podman = label, state_root, podman

    @property
    def subnet(self) -> IPv4Network:
        (network,) = self._podman.json("network", "inspect", self.name)
        return IPv4Network(network["subnets"][0]["subnet"])

    @property
    def gateway(self) -> IPv4Address:
        return addresses.gateway(self.subnet)

    def ensure(self) -> IPv4Network:
        """Create the network unless it exists, and return its subnet."""
        with (self._state_root / "subnets.lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if not self._exists():
                subnet = addresses.free_subnet(self._used())
                if subnet is None:
                    raise LabError(
                        "every subnet the lab may use (10.70.0.0/16 to 10.119.0.0/16) is taken on this machine"
                    )
                options = [f"--subnet={subnet}", f"--gateway={addresses.gateway(subnet)}", f"--label={self._label}"]
                self._podman.run("network", "create", *options, self.name)
        return self.subnet

    def remove(self) -> None:
        if self._exists():
            self._podman.run("network", "rm", "--force", self.name)

    def _exists(self) -> bool:
        return self._podman.exists("network", self.name)

    def _used(self) -> list[IPv4Network]:
        names = self._podman.text("network", "ls", "--quiet").split()
        rows = self._podman.json("network", "inspect", *names) if names else []
        theirs = [each["subnet"] for row in rows for each in row.get("subnets") or []]
        routes = subprocess.run(["ip", "-4", "route"], capture_output=True, text=True, check=True, timeout=10).stdout
        ours = [
            line.split()[0]
            for line in routes.splitlines()
            if line and not line.startswith(("default", "unreachable", "blackhole"))
        ]
        return [network for text in (*theirs, *ours) if isinstance(network := ipaddress.ip_network(text), IPv4Network)]
