# SPDX-License-Identifier: Apache-2.0
"""The checks that Ansible's own tools make of a collection: `make sanity`, on the Python that runs this.

The collection is laid out as it is installed, in a git repository of its own: ansible-test looks at tracked files only.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
#: Where ansible-test says which version of pip it installs.
PIP_VERSIONS = Path(
    importlib.util.find_spec("ansible_test").submodule_search_locations[0], "_internal/python_requirements.py"
)
#: ansible-test downloads a script that installs pip; this one, in its cache, needs no download.
PIP_BOOTSTRAP = "import ensurepip\nensurepip.bootstrap()\n"


def main() -> int:
    """Run both checks."""
    with tempfile.TemporaryDirectory() as folder:
        collection = Path(folder, "ansible_collections/hyperpod/lifecycle")
        shutil.copytree(ROOT / "collection", collection, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(ROOT / "inventory_plugins", collection / "plugins/inventory")
        environment = {**os.environ, "HOME": folder, "PATH": f"{BIN}:{os.environ['PATH']}"}
        cache = Path(folder, ".ansible/test/cache")
        cache.mkdir(parents=True)
        for version in set(re.findall(r"pip='([0-9.]+)'", PIP_VERSIONS.read_text())):
            (cache / f"get_pip_{version.replace('.', '_')}.py").write_text(PIP_BOOTSTRAP)
        for command in (["git", "init", "--quiet"], ["git", "add", "--all"]):
            subprocess.run(command, cwd=collection, env=environment, check=True)
        sanity = ["ansible-test", "sanity", "--local", "--python", PYTHON, "--color", "no", *sys.argv[1:]]
        done = subprocess.run(sanity, cwd=collection, env=environment, check=False)
        subprocess.run(
            ["ansible-galaxy", "collection", "build", "--output-path", folder],
            cwd=collection,
            env=environment,
            check=True,
        )
        (archive,) = Path(folder).glob("hyperpod-lifecycle-*.tar.gz")
        importer = subprocess.run(
            [sys.executable, "-m", "galaxy_importer.main", str(archive)], env=environment, cwd=folder, check=False
        )
        return done.returncode or importer.returncode


if __name__ == "__main__":
    sys.exit(main())
