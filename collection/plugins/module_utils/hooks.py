# SPDX-License-Identifier: Apache-2.0
"""Slurm's hooks and metrics, in addition to existing ones. Uses the standard library only."""

from __future__ import annotations

import glob
import re

from ansible_collections.hyperpod.lifecycle.plugins.module_utils import accounting

#: First version with several prologs, which slurmctld sends to the nodes.
SENT = (24, 5)
#: First version in which slurmctld has metrics of its own.
METRICS = (25, 11)
#: Settings with which slurmctld serves no metrics, or only to users with a token.
PRIVATE = ("PrivateData", "MetricsAuthUsers")
#: Directory of the files that slurmctld has sent to the nodes.
SENT_FOLDER = "/run/slurm/conf"


def version(text):
    """Return the first two numbers of ``slurm 24.11.5``."""
    match = re.search(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def maps_jobs(prologs, job_dir):
    """Return whether an existing prolog, which may be a pattern, writes the jobs of each GPU."""
    return any(job_dir in accounting.read(path) for pattern in prologs for path in glob.glob(pattern))


def decide(found_version, there, script, job_dir, *, jobs, tasks):
    """Return the settings to add, whether slurmctld has metrics of its own, and notes on what is unavailable."""
    values = {}
    for key, value in there:
        values.setdefault(key.lower(), []).append(value)
    settings, notes = {}, []
    native = found_version >= METRICS
    private = [name for name in PRIVATE if name.lower() in values]
    if native and private:
        native = False
        notes.append(f"no metrics of slurmctld, because slurm.conf has {' and '.join(private)}")
    if native:
        settings["MetricsType"] = "metrics/openmetrics"
    jobs = jobs and not maps_jobs(values.get("prolog", []), job_dir)
    tasks = tasks and bool(script)
    if (jobs or tasks) and found_version < SENT:
        name = ".".join(f"{number:02}" for number in found_version)
        notes.append(
            f"metrics do not say which job has which GPU: Slurm {name} sends no prolog to the nodes, 24.05 does"
        )
        jobs = tasks = False
    if tasks and "taskprolog" in values:
        notes.append(
            f"no NCCL metrics: TaskProlog={values['taskprolog'][0]} is there, and Slurm has one only; "
            f"let it print what {SENT_FOLDER}/{script} prints"
        )
        tasks = False
    if jobs or tasks:
        settings |= {"Prolog": script, "Epilog": script}
    if tasks:
        settings["TaskProlog"] = f"{SENT_FOLDER}/{script}"
    return {"settings": settings, "native": native, "notes": notes}
