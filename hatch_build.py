# SPDX-License-Identifier: Apache-2.0
"""Install the Ansible collection on Python's path, where Ansible finds it without configuration.

A wheel contains its files; an editable install has symlinks in `.collections/`, which `dev-mode-dirs` adds to the path.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COLLECTION = "ansible_collections/hyperpod/lifecycle"


def pieces(root: Path) -> dict[Path, str]:
    """Return each source in the checkout with its path in the collection."""
    collection = root / "collection"
    places = {collection / name: name for name in ("galaxy.yml", "meta", "playbooks", "roles")}
    places |= {folder: f"plugins/{folder.name}" for folder in sorted((collection / "plugins").iterdir())}
    places[root / "inventory_plugins"] = "plugins/inventory"
    return {source: f"{COLLECTION}/{place}" for source, place in places.items()}


class CollectionHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the collection to hatchling's build."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add files to a `standard` build, or create symlinks for an `editable` one, by `version`."""
        root = Path(self.root)
        if version != "editable":
            build_data["force_include"].update({str(source): place for source, place in pieces(root).items()})
            return
        shutil.rmtree(root / ".collections", ignore_errors=True)
        for source, place in pieces(root).items():
            link = root / ".collections" / place
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(source)
