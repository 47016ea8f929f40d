# SPDX-License-Identifier: Apache-2.0
"""Accounting in a database outside of the cluster: a real MariaDB over TLS, its password from Secrets Manager.

The tests of this module share one lab and follow each other.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from accounting import ETC, PARAMETERS, SETTINGS, holders, run_job, wait_for_job, watch
from conftest import lab_called, shape
from nodes import COMPUTE, CONTROLLER, LOGIN, applied, bash, refused

from hyperpod_lab.database import Database
from hyperpod_lab.fake_aws import FakeAws
from hyperpod_lab.lab import Lab

HOST = "otter.c0ffee.eu-west-1.rds.amazonaws.com"
SECRET = "/etc/hyperpod-lifecycle/secrets/slurmdbd-external"
CA = "/etc/hyperpod-lifecycle/inventory/files/database.pem"
PASSWORD, NEXT_PASSWORD = "0nlyHereAndInItsTwoFiles", "with a blank, #1 of \\several = 'hard' ones"
#: Not the cluster's region. Without its last letters, which Secrets Manager makes up, it is good too.
REGION = "eu-west-1"
ARN = f"arn:aws:secretsmanager:{REGION}:123456789012:secret:otter-db"
CONFIGURATIONS = {
    "slurm_database_endpoint": HOST,
    "slurm_database_secret_arn": ARN,
    "slurm_database_user": "slurm",
}


@pytest.fixture(scope="module")
def lab(upload: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("extdb") / "src"
    shutil.copytree(upload(), folder)
    parameters = folder / "provisioning_parameters.json"
    parameters.write_text(json.dumps({**PARAMETERS, "slurm_configurations": CONFIGURATIONS}))
    with lab_called("extdb") as lab:
        lab.up(shape(parameters=parameters, compute_nodes=1), scripts=False)
        database, aws = Database(lab.services, HOST), FakeAws(lab)
        database.start()
        database.account("slurm", PASSWORD, "slurm\\_acct\\_db")
        aws.start()
        aws.install_cli(CONTROLLER)
        put_secret(lab, PASSWORD)
        (folder / "inventory/files").mkdir()
        (folder / "inventory/files/database.pem").write_bytes(database.ca)
        (folder / "inventory/group_vars").mkdir(exist_ok=True)
        (folder / "inventory/group_vars/controller.yml").write_text(f"accounting_external_ca: {CA}\n")
        results = lab.up(upload_folder=folder)
        assert [result.exit_code for result in results] == [0, 0, 0], [result.summary for result in results]
        yield lab


@pytest.fixture
def database(lab: Lab) -> Database:
    return Database(lab.services, HOST)


def put_secret(lab: Lab, password: str) -> None:
    FakeAws(lab).secret("otter-db", json.dumps({"username": "slurm", "password": password}), REGION)


def set_up(lab: Lab, **settings: object) -> None:
    """Other settings than those of the upload folder."""
    lab.put(CONTROLLER, json.dumps({"accounting_external_ca": CA, **settings}).encode(), SETTINGS)


def test_a_job_from_the_login_node_is_known_on_every_node(lab: Lab) -> None:
    run_job(lab, "proof")
    for node in (CONTROLLER, LOGIN, COMPUTE):
        wait_for_job(lab, "proof", node)


def test_the_records_are_there_and_nowhere_else(lab: Lab, database: Database) -> None:
    table = f"slurm_acct_db.`{lab.shape.cluster_name.lower()}_job_table`"
    assert "proof" in database.query(f"SELECT job_name FROM {table}")
    assert bash(lab, CONTROLLER, "systemctl is-active mariadb", check=False) == "inactive\n"
    assert "SSL_CA=" in bash(lab, CONTROLLER, f"cat {ETC}/slurmdbd.conf")
    # The server takes nothing in the clear, so this is TLS.
    assert database.query("SELECT @@require_secure_transport") == "1\n"


def test_second_run_changes_nothing(lab: Lab) -> None:
    ask = f"sha256sum {SECRET} {ETC}/*.conf; systemctl show --property=MainPID slurmdbd slurmctld"
    before = bash(lab, CONTROLLER, ask)
    assert applied(lab, CONTROLLER) == 0
    assert bash(lab, CONTROLLER, ask) == before
    modes = bash(lab, CONTROLLER, f"stat -c '%U %a' {SECRET} {ETC}/slurmdbd.conf").split("\n")
    assert modes[:2] == ["root 600", "slurm 600"]


def test_the_password_is_in_two_files_and_nowhere_else(lab: Lab) -> None:
    assert holders(lab, SECRET) == sorted([SECRET, f"{ETC}/slurmdbd.conf"])
    assert bash(lab, CONTROLLER, f"journalctl --output=export | grep -caF -f {SECRET}; true") == "0\n"
    assert all(PASSWORD.encode() not in log.read_bytes() for log in (lab.state / "logs").iterdir())


@pytest.mark.parametrize("good", [True, False], ids=["good", "client"])
def test_no_run_shows_the_password(lab: Lab, good: bool) -> None:
    # A client that fails and says all that it was told.
    client = "/usr/local/sbin/mariadb"
    spoil = f"printf '#!/bin/sh\\ncat >&2; exit 1\\n' >{client}; chmod 755 {client}"
    script = f"""
    {watch(SECRET)}
    rm {ETC}/slurmdbd.conf; cp {SECRET} /srv/kept; rm {SECRET}; {"true" if good else spoil}
    hyperpod-lifecycle apply -vvvv --diff --json --tags accounting >/srv/out 2>&1; status=$?
    rm -f {client}; kill $watch
    grep -caF -f /srv/kept /srv/out; echo $status; wc -l </srv/out; cat /root/seen; rm /srv/kept /srv/out
    """
    shown, status, lines, *seen = bash(lab, CONTROLLER, script).split()
    assert (int(shown), int(status)) == (0, 0 if good else 4)
    assert int(lines) > 50, "the run has said a lot"
    assert seen == []
    applied(lab, CONTROLLER, tags="accounting")
    assert holders(lab, SECRET) == sorted([SECRET, f"{ETC}/slurmdbd.conf"])


def test_a_rotated_secret_is_taken_and_restarts_slurmdbd_alone(lab: Lab, database: Database) -> None:
    database.account("slurm", NEXT_PASSWORD, "slurm\\_acct\\_db")
    put_secret(lab, NEXT_PASSWORD)
    pids = "systemctl show --property=MainPID --value slurmdbd slurmctld"
    before = bash(lab, CONTROLLER, pids).split()
    # The copy of the secret, slurmdbd.conf, and slurmdbd.
    assert applied(lab, CONTROLLER) == 3
    after = bash(lab, CONTROLLER, pids).split()
    assert (before[0] != after[0], before[1] == after[1]) == (True, True)
    assert applied(lab, CONTROLLER) == 0
    run_job(lab, "rotated")
    wait_for_job(lab, "rotated")


def test_a_password_that_slurmdbd_conf_cannot_hold_is_refused(lab: Lab) -> None:
    before = bash(lab, CONTROLLER, f"cat {ETC}/*.conf {SECRET} | sha256sum")
    put_secret(lab, 'a "quoted" word')
    said = refused(lab, CONTROLLER, tags="accounting")
    assert "double quote" in said
    assert "quoted" not in said
    assert bash(lab, CONTROLLER, f"cat {ETC}/*.conf {SECRET} | sha256sum") == before
    put_secret(lab, NEXT_PASSWORD)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"accounting_external_ca": "/etc/ssl/certs/ca-certificates.crt"}, "accounting_external_ca"),
        # The server's other name, which its certificate does not have.
        ({"accounting_external_host": "database"}, "no TLS with the database on database:3306"),
        ({"accounting_external_user": "nobody"}, "does not let nobody in"),
        ({"accounting_external_password_file": "/etc/hostname"}, "chmod 600 /etc/hostname"),
        ({"accounting_database": "another"}, "lacks rights on the database another"),
        ({"accounting_aws": "no-such-cli"}, "no AWS CLI 'no-such-cli'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_wrong_is_named_and_nothing_is_changed(lab: Lab, settings: dict[str, str], said: str) -> None:
    ask = f"cd {ETC}; sha256sum *.conf {SECRET}; systemctl show --property=MainPID slurmdbd"
    before = bash(lab, CONTROLLER, ask)
    set_up(lab, accounting_wait_seconds=5, **settings)
    assert said in refused(lab, CONTROLLER, tags="accounting")
    assert bash(lab, CONTROLLER, ask) == before


def test_a_database_that_is_down_is_one_clear_error_in_time(lab: Lab, database: Database) -> None:
    set_up(lab, accounting_wait_seconds=5)
    database.stop()
    said = refused(lab, CONTROLLER, tags="accounting")
    assert f"no database answers on {HOST}:3306 within 5 s: Connection refused" in said
    database.resume()
    set_up(lab)
    applied(lab, CONTROLLER)
    run_job(lab, "again")
    wait_for_job(lab, "again")


def test_history_goes_along_to_a_database_on_the_controller_and_back(lab: Lab) -> None:
    jobs = ["proof", "rotated", "again"]
    local = {"accounting_external_host": "", "accounting_wait_seconds": 60}
    set_up(lab, **local)
    assert "accounting_move" in refused(lab, CONTROLLER, tags="accounting")
    for number, place in enumerate((local, {})):
        set_up(lab, accounting_move=True, **place)
        applied(lab, CONTROLLER)
        where = bash(lab, CONTROLLER, f"grep StorageHost {ETC}/slurmdbd.conf")
        assert where == f"StorageHost={'localhost' if place else HOST}\n"
        jobs.append(f"move{number}")
        run_job(lab, jobs[-1])
        for job in jobs:
            wait_for_job(lab, job)
    assert applied(lab, CONTROLLER) == 0
