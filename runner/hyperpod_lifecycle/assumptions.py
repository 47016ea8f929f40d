# SPDX-License-Identifier: Apache-2.0
"""Probe a node for assumptions of the code that no test can verify.

The collection's ``meta/assumptions.yml`` lists the assumptions and describes their probes. Probes only read.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from hyperpod_lifecycle.errors import LifecycleError
from hyperpod_lifecycle.paths import Paths
from hyperpod_lifecycle.report import one_line

#: Limit for all probes together, in seconds.
LIMIT_SECONDS = 5.0
HOLDS, DOES_NOT_HOLD, CANNOT_TELL = "holds", "does not hold", "cannot tell"

PRELUDE = """\
unknown() { echo "$*"; exit 2; }
have() { command -v "$1" >/dev/null || unknown "no $1"; }
json() {
    [ -r "$CONFIG/resource_config.json" ] || unknown "resource_config.json cannot be read"
    /usr/bin/python3 -I - "$CONFIG/resource_config.json" "$1" <<'END'
import json, sys
try:
    with open(sys.argv[1], encoding="utf-8-sig") as file:
        holds = eval(sys.argv[2], {"d": json.load(file)})
except Exception as error:
    print(f"{type(error).__name__}: {error}")
    sys.exit(2)
sys.exit(not holds)
END
}
"""


@dataclass(frozen=True)
class Finding:
    """One assumption and what its probe found on this node."""

    id: str
    claim: str
    source: str
    certainty: str  #: seen, documented or inferred
    depends: str  #: what depends on the assumption
    verdict: str  #: HOLDS, DOES_NOT_HOLD or CANNOT_TELL
    detail: str  #: the last line of the probe's output, or why there is no verdict

    def to_dict(self) -> dict[str, str]:
        """Return the finding as JSON data."""
        return asdict(self)


def probe(paths: Paths, limit: float = LIMIT_SECONDS) -> list[Finding]:
    """Run the probes that apply to this node, in parallel, within `limit` seconds. Requires neither a run nor root."""
    document = yaml.safe_load(_file().read_text(encoding="utf-8"))
    node_type, address, controller = _node(paths)
    variables = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LC_ALL": "C.UTF-8",
        "NODE_TYPE": node_type,
        "ADDRESS": address,
        "CONTROLLER": controller,
        "CONFIG": str(paths.platform_dir),
        "SLURM": "/opt/slurm",
        "ETC": "/opt/slurm/etc",
    }
    deadline = time.monotonic() + limit
    rows = [row for row in document["assumptions"] if not node_type or node_type in row.get("nodes", [node_type])]

    def find(row: Mapping[str, Any]) -> Finding:
        if row.get("nodes") and not node_type:
            verdict, detail = CANNOT_TELL, "the type of this node is not known"
        else:
            verdict, detail = _run(str(row["probe"]), variables, deadline)
        source = document["sources"][row["source"]]
        return Finding(row["id"], row["claim"], source, row["certainty"], row["depends"], verdict, detail)

    with ThreadPoolExecutor(max_workers=2 * (os.cpu_count() or 1)) as pool:
        return list(pool.map(find, rows))


def lines(findings: list[Finding]) -> Iterator[str]:
    """Return the findings as text: first those that do not hold, with what depends on them."""
    for verdict in (DOES_NOT_HOLD, CANNOT_TELL, HOLDS):
        for finding in findings:
            if finding.verdict == verdict:
                detail = f" ({finding.detail})" if finding.detail else ""
                consequence = f"; depends on it: {finding.depends}" if verdict == DOES_NOT_HOLD else ""
                yield f"{verdict:13}  {finding.id}: {finding.claim}{detail}{consequence}"
    counts = (f"{sum(each.verdict == verdict for each in findings)} {verdict}" for verdict in (HOLDS, DOES_NOT_HOLD))
    unknown = sum(each.verdict == CANNOT_TELL for each in findings)
    yield f"{len(findings)} assumptions: {', '.join(counts)}, {unknown} {CANNOT_TELL}"


def _run(script: str, variables: Mapping[str, str], deadline: float) -> tuple[str, str]:
    """Return the verdict of one probe and the last line of its output."""
    process = subprocess.Popen(
        ["/bin/sh", "-c", PRELUDE + script],
        env=variables,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return CANNOT_TELL, "no answer within the limit"
    said = one_line((output.strip().splitlines() or [""])[-1], 200)
    return {0: HOLDS, 1: DOES_NOT_HOLD}.get(process.returncode, CANNOT_TELL), said


def _node(paths: Paths) -> tuple[str, str, str]:
    """Return this node's type and address and the first controller's address; empty strings if they are unknown."""
    from hyperpod_lifecycle.addresses import find_node
    from hyperpod_lifecycle.cluster import load
    from hyperpod_lifecycle.inputs import resolve

    try:
        found = resolve(paths)
        node = find_node(load(found.resource_config, found.provisioning_parameters), wait_seconds=0)
    except (LifecycleError, OSError):
        return "", "", ""
    return node.node_type.value, node.instance.address or "", next(iter(node.cluster.controller_addresses), "")


def _file() -> Path:
    """Return the path of the list in the collection."""
    name = "ansible_collections/hyperpod/lifecycle/meta/assumptions.yml"
    for entry in sys.path:
        path = Path(entry, name)
        if path.is_file():
            return path
    raise FileNotFoundError(name)
