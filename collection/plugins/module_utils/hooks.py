# SPDX-License-Identifier: Apache-2.0
"""Slurm's hooks and metrics, beside those that are there. Standard library only: it runs on the node."""

from __future__ import annotations

import glob
import re

from ansible_collections.hyperpod.lifecycle.plugins.module_utils import accounting

#: From here on there may be several prologs, and slurmctld sends them to the nodes.
SENT = (24, 5)
#: From here on slurmctld has metrics of its own.
METRICS = (25, 11)
#: With these slurmctld gives them to nobody, or to users with a token only.
PRIVATE = ("PrivateData", "MetricsAuthUsers")
#: Where nodes find what slurmctld has sent.
SENT_FOLDER = "/run/slurm/conf"


def version(text):
    """The first two numbers of ``slurm 24.11.5``."""
    match = re.search(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def maps_jobs(prologs, job_dir):
    """Does a prolog that is there, which may be a pattern, write which jobs have which GPU?"""
    return any(job_dir in accounting.read(path) for pattern in prologs for path in glob.glob(pattern))


def decide(found_version, there, script, job_dir, *, jobs, tasks):
    """Settings to add, whether slurmctld has metrics of its own, and what cannot be had."""
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
