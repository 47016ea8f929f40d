# SPDX-License-Identifier: Apache-2.0
"""A controller's accounting database and state, located by its configuration. Uses the standard library only."""

from __future__ import annotations

import calendar
import os
import socket
import time
from contextlib import contextmanager
from pathlib import Path

from ansible_collections.hyperpod.lifecycle.plugins.module_utils import backups, dump, slurm
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault, journal, run
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.hosts import same_host
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.mariadb import identifier
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.waits import pause

SOCKET = "/run/mysqld/mysqld.sock"
#: slurmctld saves changes within five seconds (SAVE_MAX_WAIT in its source) and does not report it.
SAVE_SECONDS = 6
#: Seconds that another controller may take to create slurmdbd's tables.
LOCK_SECONDS = 300


class Controller:
    """What a backup contains and a restore replaces. Raises Fault if this node is not a controller."""

    def __init__(self, prefix, config_dir):
        self.bin = Path(prefix, "bin")
        conf, slurmdbd_conf = Path(config_dir, "slurm.conf"), Path(config_dir, "slurmdbd.conf")
        if not conf.exists():
            raise Fault(f"{conf} is not there yet; run hyperpod-lifecycle apply first")
        settings = {key.lower(): value for key, value in slurm.parameters(conf.read_text(errors="replace"))}
        self.cluster = settings.get("clustername", "").lower()
        self.state_dir = settings.get("statesavelocation", "/var/spool")
        status, said, errors = run([str(Path(prefix, "sbin/slurmctld")), "-V"], 20)
        if status:
            raise Fault(f"slurmctld -V: {errors}")
        self.slurm = said.strip()
        #: Server and name of the database; None if accounting is disabled or on another host.
        self.server, self.database = None, None
        if slurmdbd_conf.exists():
            self.server, self.database = dump.named_in(slurmdbd_conf.read_text(), SOCKET)

    def clusters(self):
        """Return the names of the clusters in the database."""
        return dump.clusters(self.server, self.database) if self.database else []

    def jobs_since(self, moment):
        """Return the number of jobs since ``20261130T140509Z``, from the database, else from slurmctld."""
        seconds = calendar.timegm(time.strptime(moment, backups.TIME))
        if self.database:
            name = f"{self.cluster}_job_table"
            if name not in dump.tables(self.server, self.database):
                return 0
            table = f"{identifier(self.database)}.{identifier(name)}"
            ((number,),) = self.server.ask(f"SELECT COUNT(*) FROM {table} WHERE mod_time > {seconds}")  # noqa: S608
            return int(number)
        status, said, errors = run([str(self.bin / "squeue"), "--noheader", "--states=all", "--format=%V"], 30)
        if status:
            raise Fault(f"squeue failed, so the jobs that would be lost are unknown: {errors}")
        submitted = [time.mktime(time.strptime(line, "%Y-%m-%dT%H:%M:%S")) for line in said.split()]
        return len([each for each in submitted if each > seconds])

    def others_up(self):
        """Return the other controllers that answer. They would overwrite restored state with their own."""
        _status, said, _errors = run([str(self.bin / "scontrol"), "ping"], 60)
        return {host for host in slurm.controllers_up(said) if not same_host(host, socket.gethostname())}

    def dbds_up(self):
        """Return the other hosts whose slurmdbd uses the database. A standby takes over when this one stops."""
        return dump.users_elsewhere(self.server, self.database) if self.database else []

    @contextmanager
    def alone(self):
        """Lock the database once no slurmdbd is connected. Both daemons of this node must be stopped."""
        if not self.database:
            yield
            return
        # A slurmdbd that creates tables on another controller waits for this lock.
        with self.server.locked(dump.lock_name(self.database), LOCK_SECONDS):
            dump.wait_until_unused(self.server, self.database)
            yield

    def save(self, folder, arn, created):
        """Write a backup into an empty directory."""
        if run(["systemctl", "is-active", "slurmctld"], 20)[0] == 0:
            time.sleep(SAVE_SECONDS)
        backups.pack(self.state_dir, os.path.join(folder, backups.STATE))
        # After the state: jobs that end meanwhile are in the database, and slurmctld detects them when it starts.
        if self.database:
            dump.dump(self.server, self.database, os.path.join(folder, backups.DATABASE))
        about = {"cluster": self.cluster, "arn": arn, "slurm": self.slurm, "created": created}
        backups.seal(folder, {**about, "clusters": self.clusters()})

    def bring(self, folder):
        """Replace database and state with those of a backup. Both daemons must be stopped."""
        if self.database:
            # A newer Slurm may have created tables that the backup does not have.
            there = [identifier(name) for name in dump.tables(self.server, self.database)]
            use = f"USE {identifier(self.database)}; SET FOREIGN_KEY_CHECKS=0"
            self.server.ask(use, *(f"DROP TABLE {name}" for name in there))
            dump.load(self.server, self.database, os.path.join(folder, backups.DATABASE))
        backups.replace(os.path.join(folder, backups.STATE), self.state_dir)

    def stop(self):
        """Stop both daemons. Return those that were running, in the order to start them."""
        ran = [name for name in ("slurmdbd", "slurmctld") if run(["systemctl", "is-active", name], 20)[0] == 0]
        for name in reversed(ran):
            status, _said, errors = run(["systemctl", "stop", name], 120)
            if status:
                raise Fault(f"systemctl stop {name}: {errors}")
        return ran

    def start(self, names, seconds):
        """Start daemons, and wait until each answers."""
        questions = {"slurmdbd": ["sacctmgr", "--noheader", "show", "cluster"], "slurmctld": ["scontrol", "ping"]}
        for name in names:
            status, _said, errors = run(["systemctl", "start", name], 120)
            if status:
                raise Fault(f"systemctl start {name}: {errors}; {journal(name)}")
            command, *words = questions[name]
            deadline = time.monotonic() + seconds
            while True:
                status, said, errors = run([str(self.bin / command), *words], 30)
                # A restore has the other controllers' daemons down, and `scontrol ping` fails then.
                if " UP" in said if name == "slurmctld" else status == 0:
                    break
                if time.monotonic() > deadline:
                    raise Fault(f"{name} does not answer within {seconds} s: {errors or said.strip()}; {journal(name)}")
                pause(0.3)


def now():
    """Return the name of a backup created now."""
    return time.strftime(backups.TIME, time.gmtime())
