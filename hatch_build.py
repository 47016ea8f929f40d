# SPDX-License-Identifier: Apache-2.0
"""Put the Ansible collection where Ansible finds it without a setting: on Python's path.

A wheel carries it as files, an editable install as symlinks in `.collections/`, which `dev-mode-dirs` puts on the path.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COLLECTION = "ansible_collections/hyperpod/lifecycle"


def pieces(root: Path) -> dict[Path, str]:
    """Each source below the checkout and its place in the collection."""
    collection = root / "collection"
    places = {collection / name: name for name in ("galaxy.yml", "meta", "playbooks", "roles")}
    places |= {folder: f"plugins/{folder.name}" for folder in sorted((collection / "plugins").iterdir())}
    places[root / "inventory_plugins"] = "plugins/inventory"
    return {source: f"{COLLECTION}/{place}" for source, place in places.items()}


class CollectionHook(BuildHookInterface):  # type: ignore[type-arg]
    """Add the collection to what hatchling builds."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called once for a build; `version` is `standard` or `editable`."""
        root = Path(self.root)
        if version != "editable":
            build_data["force_include"].update({str(source): place for source, place in pieces(root).items()})
            return
        shutil.rmtree(root / ".collections", ignore_errors=True)
        for source, place in pieces(root).items():
            link = root / ".collections" / place
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(source)
