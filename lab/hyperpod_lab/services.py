# SPDX-License-Identifier: Apache-2.0
"""What stands beside a cluster: a database, a fake of an AWS service, a receiver of metrics. One container each.

A service runs one program of the node image in the lab's network, under a name that every node can look up. Its folder
below the lab's state is what it sees at :data:`FOLDER`, and goes with the lab.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from hyperpod_lab import addresses
from hyperpod_lab.errors import LabError, LabUsageError
from hyperpod_lab.podman import CREATE, Completed, Podman

FOLDER = "/srv/service"
#: Keeps the container, and so the service's name and address, while the program is stopped.
KEEPER = (
    'trap "kill \\$program; exit" TERM; while :; do if [ ! -e /run/stopped ]; then "$@" & program=$!; '
    "echo $program >/run/program; wait $program; fi; sleep 0.1; done"
)


@dataclass(frozen=True)
class Service:
    name: str
    address: IPv4Address
    container: str


class Services:
    """The services of one lab, by name. They need a lab that is up, with or without its scripts."""

    def __init__(self, lab: str, network: str, folder: Path, podman: Podman, subnet: Callable[[], IPv4Network]) -> None:
        self.folder = folder
        self._label, self._network, self._podman, self._subnet = f"hyperpod-lab-service={lab}", network, podman, subnet

    def all(self) -> list[Service]:
        rows = self._podman.json("ps", "--all", "--format", "json", "--filter", f"label={self._label}")
        return [
            Service(labels["service"], IPv4Address(labels["address"]), row["Names"][0])
            for row in rows
            for labels in [row["Labels"]]
        ]

    def get(self, name: str) -> Service:
        found = {service.name: service for service in self.all()}
        if name not in found:
            raise LabUsageError(f"no service is named {name}. Known services: {', '.join(found) or 'none'}")
        return found[name]

    def start(
        self,
        name: str,
        argv: Sequence[str],
        *,
        files: Mapping[str, bytes] | None = None,
        names: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        mounts: Mapping[Path, str] | None = None,
    ) -> Service:
        """Run a program; ``files`` are put in its folder first, ``mounts`` are folders of the host it may read.

        Nodes know it by its name and by ``names``. One that is there already is replaced; its folder stays.
        """
        folder = self.folder / name
        for path, content in (files or {}).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        folder.mkdir(parents=True, exist_ok=True)
        present = {service.name: service for service in self.all()}
        if name in present:
            self._podman.remove(present[name].container)
        taken = {service.address for service in present.values() if service.name != name}
        address = addresses.service_address(self._subnet(), taken)
        container = self._container(name)
        self._podman.run(
            *("run", *CREATE, "--init", "--stop-signal=TERM"),
            *(f"--name={container}", f"--hostname={name}", f"--network={self._network}", f"--ip={address}"),
            *(f"--network-alias={each}" for each in (name, *names)),
            *(f"--volume={folder}:{FOLDER}", f"--workdir={FOLDER}"),
            *(f"--volume={source}:{dest}:ro" for source, dest in (mounts or {}).items()),
            *(f"--env={key}={value}" for key, value in (environment or {}).items()),
            *(f"--label={label}" for label in (self._label, f"service={name}", f"address={address}")),
            self._image(),
            *("sh", "-c", KEEPER, "keeper", *argv),
            timeout=120,
        )
        return self.get(name)

    def exec(self, name: str, argv: Sequence[str], *, data: bytes = b"", timeout: float = 60) -> Completed:
        command = ["env", f"--chdir={FOLDER}", *argv]
        return self._podman.enter(self._container(name), command, data=data, timeout=timeout, check=True)

    def logs(self, name: str) -> str:
        done = self._podman.run("logs", self.get(name).container)
        return (done.stdout + done.stderr).decode(errors="replace")

    def stop(self, name: str) -> None:
        """End the program: its name is known as before, and its port refuses."""
        end = 'touch /run/stopped; read -r program </run/program; kill "$program"; '
        end += 'while kill -0 "$program" 2>/dev/null; do sleep 0.1; done'
        self._shell(name, end)

    def resume(self, name: str) -> None:
        """Start the program of one that was stopped again, in the same folder."""
        self._shell(name, "rm /run/stopped")

    def pause(self, name: str) -> None:
        """Freeze it, as a hung server looks to the others."""
        self._podman.run("pause", self.get(name).container)

    def unpause(self, name: str) -> None:
        self._podman.run("unpause", self.get(name).container)

    def _shell(self, name: str, script: str) -> None:
        self.exec(name, ["sh", "-c", script])

    def _container(self, name: str) -> str:
        return f"{self._network}-service-{name}"

    def remove_all(self) -> None:
        containers = [service.container for service in self.all()]
        if containers:
            self._podman.remove(*containers)

    def _image(self) -> str:
        rows = self._podman.json("ps", "--all", "--format", "json", "--filter", f"network={self._network}")
        images = [row["Image"] for row in rows]
        if not images:
            raise LabError("a service runs in the image of the lab's nodes; start the lab first")
        return str(images[0])
