# SPDX-License-Identifier: Apache-2.0
"""What the stand-in knows of one instance, and of the hardware under all of them."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address

from hyperpod_lab.addresses import host_name

#: GPUs of the instance types people use; sizes that are not here have none.
GPUS = {
    "ml.g4dn.xlarge": 1, "ml.g4dn.12xlarge": 4, "ml.g4dn.metal": 8,
    "ml.g5.xlarge": 1, "ml.g5.2xlarge": 1, "ml.g5.4xlarge": 1, "ml.g5.8xlarge": 1, "ml.g5.16xlarge": 1,
    "ml.g5.12xlarge": 4, "ml.g5.24xlarge": 4, "ml.g5.48xlarge": 8,
    "ml.g6.xlarge": 1, "ml.g6.2xlarge": 1, "ml.g6.4xlarge": 1, "ml.g6.8xlarge": 1, "ml.g6.16xlarge": 1,
    "ml.g6.12xlarge": 4, "ml.g6.24xlarge": 4, "ml.g6.48xlarge": 8,
    "ml.g6e.xlarge": 1, "ml.g6e.2xlarge": 1, "ml.g6e.4xlarge": 1, "ml.g6e.8xlarge": 1, "ml.g6e.16xlarge": 1,
    "ml.g6e.12xlarge": 4, "ml.g6e.24xlarge": 4, "ml.g6e.48xlarge": 8,
    "ml.p3.2xlarge": 1, "ml.p3.8xlarge": 4, "ml.p3.16xlarge": 8,
    "ml.p4d.24xlarge": 8, "ml.p4de.24xlarge": 8,
    "ml.p5.4xlarge": 1, "ml.p5.48xlarge": 8, "ml.p5e.48xlarge": 8, "ml.p5en.48xlarge": 8,
    "ml.p6-b200.48xlarge": 8, "ml.p6-b300.48xlarge": 8,
}  # fmt: skip
#: Further families whose instances have labels of the network, though no GPUs.
ACCELERATED = ("ml.trn", "ml.inf")


@dataclass(frozen=True)
class Node:
    """One instance as the lab runs it; kept in the container's labels."""

    name: str  #: instance name
    group: str
    instance_type: str
    instance_id: str
    address: IPv4Address
    container: str
    running: bool = True

    @property
    def host(self) -> str:
        return host_name(self.address)


@dataclass(frozen=True)
class Hardware:
    """What every node of the lab has: the machine's processors and memory, shared."""

    cpus: int
    memory_mb: int  #: as sold: a little more than slurmd finds, as on live nodes
