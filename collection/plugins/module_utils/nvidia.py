# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's container toolkit: four packages that work together. Standard library only: it runs on the node."""

from __future__ import annotations

PACKAGES = (
    "nvidia-container-toolkit-base",
    "nvidia-container-toolkit",
    "libnvidia-container-tools",
    "libnvidia-container1",
)


def plan(there, version, older):
    """What apt is to install, as ``name=version``, so that all four are there in one version.

    `there` is what is installed. The image's version comes before `version`, and of two of the image's the newer one,
    so that nothing becomes older than it is. `older` compares two versions.
    """
    wanted = version
    for number, found in enumerate(there.values()):
        if number == 0 or older(wanted, found):
            wanted = found
    return [f"{package}={wanted}" for package in PACKAGES if there.get(package) != wanted]


def reason(devices, driver):
    """Why a node has no use for the toolkit; empty if it has."""
    if not devices:
        return "this node has no NVIDIA device"
    return "" if driver else "this node has an NVIDIA device and no driver for it"
