# SPDX-License-Identifier: Apache-2.0
"""Accounting in real MariaDB and slurmdbd, from the first job to a run that is killed at each of its tasks.

The tests of this module share one lab and follow each other.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from accounting import ETC, PARAMETERS, SETTINGS, holders, run_job, wait_for_job, watch
from conftest import THOROUGH, lab_called, shape
from nodes import COMPUTE, CONTROLLER, KILLED, LOGIN, applied, bash, killed, refused

from hyperpod_lab.lab import Lab

SECRET = "/etc/hyperpod-lifecycle/secrets/slurmdbd"
USERS = """\
slurm_account: ""
groups:
  - name: physics
    slurm_account: physics
    users: [{username: ada, uid: 2001}, {username: bea, uid: 2002}]
  - name: others
    users: [{username: cyd, uid: 2003}]
"""

#: Everything of accounting on the controller, in words that are the same on every run; passwords and times left out.
STATE = r"""
cd /; find etc/hyperpod-lifecycle/secrets opt/slurm/etc etc/mysql etc/systemd/system var/spool/slurm-archive \
    -printf '%p %u %g %m %y\n' | grep -v plugstack | sort
sed 's/^StoragePass=.*/StoragePass=…/' opt/slurm/etc/slurmdbd.conf; cat opt/slurm/etc/accounting.conf
cat etc/mysql/mariadb.conf.d/60-hyperpod-slurm.cnf etc/systemd/system/slurmdbd.service.d/hyperpod.conf
mariadb --batch --skip-column-names --execute "SELECT User, Host, JSON_VALUE(Priv, '$.plugin') FROM mysql.global_priv
    ORDER BY 1, 2; SHOW GRANTS FOR slurm@localhost; SHOW DATABASES" | sed "s/\*[0-9A-F]\{40\}/…/"
sacctmgr --noheader --parsable2 show cluster format=cluster,controlhost
sacctmgr --noheader --parsable2 show assoc format=cluster,account,user | sort
sacctmgr --noheader --parsable2 show user format=user,defaultaccount | sort
systemctl is-active munge mariadb slurmdbd slurmctld; systemctl is-enabled munge mariadb slurmdbd slurmctld
"""

#: Back to what the image was.
WIPE = rf"""
systemctl disable --now slurmctld slurmdbd mariadb; systemctl stop munge
rm -rf /var/lib/mysql /var/spool/slurmctld/* /var/log/slurm/* /etc/hyperpod-lifecycle/secrets /var/spool/slurm-archive \
    /etc/systemd/system/slurmdbd.service.d /etc/mysql/mariadb.conf.d/60-hyperpod-slurm.cnf {ETC}/slurmdbd.conf
cp -a /srv/mysql.image /var/lib/mysql; : >{ETC}/accounting.conf; systemctl daemon-reload
"""


@pytest.fixture(scope="module")
def lab(upload: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("acct") / "src"
    shutil.copytree(upload(), folder)
    parameters = folder / "provisioning_parameters.json"
    parameters.write_text(json.dumps(PARAMETERS))
    (folder / "shared_users.yaml").write_text(USERS)
    with lab_called("acct") as lab:
        lab.up(shape(parameters=parameters, compute_nodes=1), scripts=False)
        bash(lab, CONTROLLER, "systemctl stop mariadb; cp -a /var/lib/mysql /srv/mysql.image")
        results = lab.up(upload_folder=folder)
        assert [result.exit_code for result in results] == [0, 0, 0], [result.summary for result in results]
        yield lab


def test_a_job_from_the_login_node_is_known_on_every_node(lab: Lab) -> None:
    run_job(lab, "proof")
    for node in (CONTROLLER, LOGIN, COMPUTE):
        wait_for_job(lab, "proof", node)


def test_users_of_the_list_have_their_accounts(lab: Lab) -> None:
    said = bash(lab, CONTROLLER, "sacctmgr --noheader --parsable2 show assoc format=account,user").split()
    assert {"root|root", "root|ubuntu", "physics|", "physics|ada", "physics|bea", "root|cyd"} <= set(said)
    said = bash(lab, CONTROLLER, "sacctmgr --noheader --parsable2 show user format=user,defaultaccount").split()
    assert {"ada|physics", "cyd|root"} <= set(said)


def test_what_an_administrator_adds_stays(lab: Lab) -> None:
    bash(
        lab, CONTROLLER, "sacctmgr -i add account guests; sacctmgr -i add user cyd account=guests defaultaccount=guests"
    )
    bash(lab, CONTROLLER, "sacctmgr -i delete user bea account=physics")
    assert applied(lab, CONTROLLER, tags="accounting") == 1
    said = bash(lab, CONTROLLER, "sacctmgr --noheader --parsable2 show assoc format=account,user").split()
    assert {"guests|cyd", "root|cyd", "physics|bea"} <= set(said)
    assert "cyd|guests" in bash(lab, CONTROLLER, "sacctmgr --noheader --parsable2 show user format=user,defaultaccount")
    bash(lab, CONTROLLER, "sacctmgr -i modify user cyd set defaultaccount=root; sacctmgr -i delete account guests")


def test_second_run_changes_nothing_and_keeps_the_password(lab: Lab) -> None:
    ask = f"sha256sum {SECRET} {ETC}/*.conf; systemctl show --property=MainPID mariadb slurmdbd slurmctld"
    before = bash(lab, CONTROLLER, ask)
    assert applied(lab, CONTROLLER) == 0
    assert bash(lab, CONTROLLER, ask) == before
    modes = bash(lab, CONTROLLER, f"stat -c '%U %a' {SECRET} {ETC}/slurmdbd.conf").split("\n")
    assert modes[:2] == ["root 600", "slurm 600"]


def test_nobody_gets_into_the_database_but_root_on_its_socket_and_slurmdbd(lab: Lab) -> None:
    for command in (
        "mariadb -uroot -h127.0.0.1 --protocol=tcp -e 'SELECT 1'",
        "runuser -u ubuntu -- mariadb -uroot -e ''",
    ):
        assert "Access denied" in bash(lab, CONTROLLER, command, check=False)
    assert "Access denied" in bash(lab, CONTROLLER, "runuser -u ubuntu -- mariadb -unobody -e ''", check=False)
    assert "127.0.0.1:3306" in bash(lab, CONTROLLER, "ss -ltn")
    # As a database that other scripts have set up.
    spoil = "SET PASSWORD FOR root@localhost = ''; CREATE USER ''@localhost; CREATE USER root@'%' IDENTIFIED BY 'y'"
    spoil += "; ALTER USER root@localhost IDENTIFIED VIA mysql_native_password USING '' OR unix_socket"
    bash(lab, CONTROLLER, f'mariadb -e "{spoil}"; mariadb -uroot -h127.0.0.1 --protocol=tcp -e "SELECT 1"')
    assert applied(lab, CONTROLLER, tags="accounting") == 1
    for command in ("mariadb -uroot -h127.0.0.1 --protocol=tcp -e ''", "runuser -u ubuntu -- mariadb -unobody -e ''"):
        assert "Access denied" in bash(lab, CONTROLLER, command, check=False)
    assert (
        bash(lab, CONTROLLER, "mariadb -N -e \"SELECT Host FROM mysql.user WHERE User IN ('root', '')\"")
        == "localhost\n"
    )


def test_the_password_is_in_two_files_and_nowhere_else(lab: Lab) -> None:
    assert holders(lab, SECRET) == sorted([SECRET, f"{ETC}/slurmdbd.conf"])
    assert bash(lab, CONTROLLER, f"journalctl --output=export | grep -caF -f {SECRET}; true") == "0\n"
    password = lab.get(CONTROLLER, SECRET).strip()
    assert len(password) == 40
    assert all(password not in log.read_bytes() for log in (lab.state / "logs").iterdir())


def test_the_watch_sees_what_it_is_for(lab: Lab) -> None:
    for show in (f'bash -c "sleep 1; true" "$(cat {SECRET})"', f"cp {SECRET} /tmp/shown; sleep 1; rm /tmp/shown"):
        assert bash(lab, CONTROLLER, f"{watch(SECRET)} {show}; kill $watch; cat /root/seen")


@pytest.mark.parametrize(
    ("breakage", "repair", "connection"),
    [
        ("true", "true", "warm"),
        # A module that has the password in hand fails with a traceback; the client fails and says all it was told.
        (f"mkdir {ETC}/.slurmdbd.conf.$(hostname).new", f"rmdir {ETC}/.slurmdbd.conf.$(hostname).new", "local"),
        (
            "printf '#!/bin/sh\\ncat >&2; exit 1\\n' >/usr/local/sbin/mariadb; chmod 755 /usr/local/sbin/mariadb",
            "rm /usr/local/sbin/mariadb",
            "warm",
        ),
        ("systemctl mask --runtime mariadb", "systemctl unmask --runtime mariadb", "warm"),
    ],
    ids=["good", "traceback", "client", "daemon"],
)
def test_no_run_shows_the_password(lab: Lab, breakage: str, repair: str, connection: str) -> None:
    script = f"""
    {watch(SECRET)}
    # Everything that the password is written to is to be done again.
    systemctl stop mariadb; rm {ETC}/slurmdbd.conf; {breakage}
    hyperpod-lifecycle apply -vvvv --diff --json --tags accounting --connection {connection} >/root/out 2>&1; status=$?
    {repair}; kill $watch; systemctl start mariadb
    grep -caF -f {SECRET} /root/out; echo $status; wc -l </root/out; cat /root/seen
    """
    shown, status, lines, *seen = bash(lab, CONTROLLER, script).split()
    assert int(shown) == 0
    assert int(status) == (0 if breakage == "true" else 4)
    assert int(lines) > 50, "the run has said a lot"
    assert seen == []
    applied(lab, CONTROLLER, tags="accounting")
    assert holders(lab, SECRET) == sorted([SECRET, f"{ETC}/slurmdbd.conf"])


def test_what_other_scripts_left_is_put_right_in_a_running_cluster(lab: Lab) -> None:
    block = "\\n# ACCOUNTING\\nJobAcctGatherType=jobacct_gather/linux\\nJobAcctGatherFrequency=30\\n"
    block += "AccountingStorageType=accounting_storage/slurmdbd\\nAccountingStorageHost=localhost\\n"
    spoil = f"printf '{block}{block}' >{ETC}/accounting.conf; sed -i '/^Include/d' {ETC}/slurm.conf"
    before = lab.get(CONTROLLER, f"{ETC}/slurm.conf").decode().splitlines()
    bash(lab, CONTROLLER, f"{spoil}; systemctl restart slurmctld")
    config = "for _ in $(seq 100); do scontrol show config && exit; sleep 0.1; done; exit 1"
    assert "accounting_storage/slurmdbd" not in bash(lab, CONTROLLER, config)
    # The settings, and slurmctld's restart.
    assert applied(lab, CONTROLLER, tags="accounting") == 2
    after = lab.get(CONTROLLER, f"{ETC}/slurm.conf").decode().splitlines()
    assert sorted(after) == sorted(before)
    conf = lab.get(CONTROLLER, f"{ETC}/accounting.conf").decode()
    assert conf.count("AccountingStorage") == 3
    assert "JobAcctGatherFrequency=30" in conf, "what is not ours stays"
    assert "accounting_storage/slurmdbd" in bash(lab, CONTROLLER, "scontrol show config")
    assert applied(lab, CONTROLLER) == 0
    bash(lab, CONTROLLER, f"sed -i '/^JobAcct\\|ACCOUNTING\\|^$/d' {ETC}/accounting.conf")


def test_gpus_are_counted_where_there_are_some(lab: Lab) -> None:
    lab.put(CONTROLLER, b"accounting_gpus: true\n", SETTINGS)
    assert applied(lab, CONTROLLER, tags="accounting") == 2
    assert "gpu" in bash(
        lab, CONTROLLER, "sacctmgr --noheader show tres format=type,name; scontrol show config | grep Gres"
    )
    assert applied(lab, CONTROLLER, tags="accounting") == 0
    bash(lab, CONTROLLER, f"rm {SETTINGS}")
    assert applied(lab, CONTROLLER, "--skip-tags", "install") == 1, (
        "and back; slurmctld keeps what it has until it starts again"
    )


def test_accounting_that_is_elsewhere_is_not_replaced(lab: Lab) -> None:
    ask = f"cd {ETC}; sha256sum slurmdbd.conf accounting.conf slurm.conf"
    for file, line, said in (
        ("slurmdbd.conf", "StorageHost=x.rds.amazonaws.com", "accounting_move"),
        ("accounting.conf", "AccountingStorageHost=10.9.9.9", "another host"),
        ("slurm.conf", "AccountingStorageHost=10.9.9.9", "another host"),
    ):
        bash(lab, CONTROLLER, f"cd {ETC}; cp -a {file} /root/kept; echo {line} >>{file}")
        before = bash(lab, CONTROLLER, ask)
        assert said in refused(lab, CONTROLLER, tags="accounting")
        assert bash(lab, CONTROLLER, ask) == before
        bash(lab, CONTROLLER, f"mv /root/kept {ETC}/{file}")
    assert applied(lab, CONTROLLER) <= 1


def test_a_cluster_id_mismatch_is_explained_and_the_remedy_is_one(lab: Lab) -> None:
    bash(lab, CONTROLLER, "systemctl stop slurmctld; sed -i 's/|.*/|7/' /var/spool/slurmctld/clustername")
    said = refused(lab, CONTROLLER, tags="accounting")
    assert "CLUSTER ID MISMATCH" in said
    assert "rm /var/spool/slurmctld/clustername" in said
    bash(lab, CONTROLLER, "systemctl stop slurmctld; rm /var/spool/slurmctld/clustername")
    applied(lab, CONTROLLER)
    assert "UP" in bash(lab, CONTROLLER, "scontrol ping")
    assert applied(lab, CONTROLLER) == 0


def test_a_run_killed_at_any_task_and_run_again_ends_as_an_undisturbed_one(lab: Lab) -> None:
    bash(lab, CONTROLLER, WIPE)
    _status, said = killed(lab, CONTROLLER, "accounting", at="nowhere")
    places = [line.removeprefix("ran ") for line in said]
    tasks = [place for place in places if "/accounting/tasks/" in place and "verify.yml" not in place]
    step = 1 if THOROUGH else 2
    applied(lab, CONTROLLER)
    undisturbed = bash(lab, CONTROLLER, STATE)
    assert "physics|ada" in undisturbed
    bash(lab, CONTROLLER, WIPE)
    # Each run begins where the one before was killed.
    ends = [
        killed(lab, CONTROLLER, "accounting", at=place, after=0.05 + 0.15 * (number % 3))[0]
        for number, place in enumerate(tasks[::step])
    ]
    assert ends.count(KILLED) >= 14 // step, list(zip(tasks[::step], ends, strict=True))
    applied(lab, CONTROLLER)
    assert bash(lab, CONTROLLER, STATE) == undisturbed
    assert applied(lab, CONTROLLER) == 0
    assert holders(lab, SECRET) == sorted([SECRET, f"{ETC}/slurmdbd.conf"])
