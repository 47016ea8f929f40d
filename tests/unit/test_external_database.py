# SPDX-License-Identifier: Apache-2.0
"""A database outside of the cluster: words, rights, secrets and refusals; tests/e2e has the real ones."""

from __future__ import annotations

import os
import secrets
import socket
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import accounting, dump, mariadb, slurm
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault
from ansible_collections.hyperpod.lifecycle.plugins.modules import (
    accounting_move,
    database_external,
    database_password_fetch,
    slurm_associations_add,
)

from hyperpod_lifecycle.inventory import Image

ARN = "arn:aws:secretsmanager:us-west-2:111122223333:secret:otter-db-AbCdEf"
FAR = {**dict.fromkeys(mariadb.SERVER["options"]), "host": "db.example", "port": 3306, "user": "slurm", "tls": True}

Program = Callable[[str, str], None]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Put a Python program on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def put(name: str, text: str) -> None:
        path = folder / name
        path.write_text(f"#!{sys.executable}\n{text}")
        path.chmod(0o755)

    return put


# --- settings ---

LEGACY = {
    "slurm_database_endpoint": "otter.c0ffee.us-west-2.rds.amazonaws.com",
    "slurm_database_secret_arn": ARN,
    "slurm_shared_directory": "/fsx",
}
API = {"Endpoint": "otter.example", "SecretArn": ARN}
CONF: dict[str, Any] = {"managed": {}, "ports": slurm.PORTS}
TWO = {
    "hyperpod_slurm_configurations": LEGACY,
    "hyperpod_controller_addresses": ["10.0.0.5", "10.0.0.6"],
    "__accounting_conf": {"hosts": [{"name": f"ip-{n}", "address": f"10.0.0.{n}"} for n in (5, 6, 7)], **CONF},
}
#: What a cluster's files say, and what comes of it.
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "local": ({}, {"StorageHost": "localhost", "StorageLoc": "slurm_acct_db", "DbdHost": "localhost"}),
    "directory": ({"hyperpod_slurm_configurations": {"slurm_shared_directory": "/fsx"}}, {"StorageHost": "localhost"}),
    "legacy": (
        {"hyperpod_slurm_configurations": LEGACY},
        {"StorageHost": LEGACY["slurm_database_endpoint"], "StorageUser": "admin", "StorageLoc": "slurm_acct_db"},
    ),
    "secret": (
        {"hyperpod_accounting_database": API, "__accounting_password": {"user": "ada"}},
        {"StorageHost": "otter.example", "StorageUser": "ada", "StorageLoc": "slurm_acct_db_a1b2", "StoragePort": 3306},
    ),
    "api": (
        {"hyperpod_accounting_database": {**API, "Name": "acct", "Port": 3307}, "accounting_external_user": "bea"},
        {"StorageUser": "bea", "StorageLoc": "acct", "StoragePort": 3307},
    ),
    "tls": ({"hyperpod_accounting_database": API}, {"StorageParameters": "SSL_CA=/opt/slurm/etc/slurmdbd-ca.pem"}),
    "two": (
        TWO,
        {
            **{"DbdHost": "ip-5", "DbdAddr": "10.0.0.5", "DbdBackupHost": "ip-6"},
            **{"AccountingStorageHost": "10.0.0.5", "AccountingStorageBackupHost": "10.0.0.6"},
        },
    ),
}


@pytest.mark.once
def test_the_clusters_files_decide_where_the_database_is(role_on_hosts: Callable[..., Any]) -> None:
    common = {
        **{"hyperpod_slurm_configurations": {}, "hyperpod_accounting_database": {}, "hyperpod_instance_types": []},
        **{"hyperpod_cluster_arn": "arn:aws:sagemaker:us-west-2:1:cluster/a1b2", "hyperpod_address": "10.0.0.5"},
        **Image().variables(),
        **{"hyperpod_controller_addresses": ["10.0.0.5"], "__accounting_conf": {"hosts": [], **CONF}},
    }
    shown = "{{ _accounting_slurmdbd_settings | combine(_accounting_settings) }}"
    hosts = {f"of_{name}": {**common, **given} for name, (given, _expected) in SETTINGS.items()}
    done = role_on_hosts("accounting", [{"ansible.builtin.set_fact": {"shown": shown}}], hosts)
    assert set(done.shown) == set(hosts), done.output
    for name, (_given, expected) in SETTINGS.items():
        found = done.shown[f"of_{name}"]
        assert {key: type(value)(found.get(key)) for key, value in expected.items()} == expected, name
        assert ("StorageParameters" in found) == (expected.get("StorageHost") != "localhost"), name
        assert ("DbdBackupHost" in found) == (name == "two")


# --- secrets ---


@pytest.mark.parametrize("partition", ["aws", "aws-cn", "aws-us-gov", "aws-iso", "aws-iso-b", "aws-eusc"])
def test_the_region_is_the_secrets_own(partition: str) -> None:
    arn = f"arn:{partition}:secretsmanager:some-region-1:111122223333:secret:a/b+c-AbCdEf"
    assert accounting.region(arn) == "some-region-1"


@pytest.mark.parametrize(
    "arn", ["", "otter-db", "arn:aws:s3:::bucket", ARN.replace("secretsmanager", "ssm"), ARN + " x"]
)
def test_what_is_no_arn_of_a_secret_has_no_region(arn: str) -> None:
    assert accounting.region(arn) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"username": "ada", "password": "word", "port": 3306}', ("ada", "word")),
        ('{"password": "word"}', ("", "word")),
        ("word\n", ("", "word")),
        ("12345678", ("", "12345678")),
        ('{"username": "ada"}', None),
        ('{"password": 7}', None),
        ('{"username": null, "password": "word"}', None),
    ],
)
def test_words_of_a_secret(text: str, words: tuple[str, str] | None) -> None:
    assert accounting.secret_words(text) == words


def test_a_secret_is_asked_for_in_its_region_and_with_no_word_of_it_in_a_command(program: Program) -> None:
    text = 'import json, sys; print(json.dumps({"SecretString": json.dumps({"password": " ".join(sys.argv[1:])})}))'
    program("aws", text)
    _user, said = database_password_fetch.fetch(ARN, "aws", 20)
    assert said == f"secretsmanager get-secret-value --secret-id {ARN} --region us-west-2 --output json"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import sys; sys.exit('AccessDeniedException: not authorized')", "secretsmanager:GetSecretValue"),
        (
            "import sys; sys.exit('ResourceNotFoundException')",
            "accounting_external_secret_arn: there is no such secret",
        ),
        ("import sys; sys.exit('Could not connect to the endpoint URL')", "VPC endpoint"),
        ("import sys; sys.exit(3)", "aws ended with 3$"),
        ("print('{}')", "holds no text"),
        ("print('oops')", "holds no text"),
        ("""print('{"SecretString": "{}"}')""", "without a string in password"),
        ("import time; time.sleep(9)", "no end within 1 s"),
    ],
)
def test_a_secret_that_cannot_be_had(program: Program, text: str, said: str) -> None:
    program("aws", text)
    with pytest.raises(Fault, match=said):
        database_password_fetch.fetch(ARN, "aws", 1)


def test_a_missing_cli_is_told_with_the_remedy() -> None:
    with pytest.raises(Fault, match="accounting_aws"):
        database_password_fetch.fetch(ARN, "no-such-program", 1)


def test_a_file_that_others_may_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "password"
    assert database_password_fetch.kept(path) is None
    path.write_text("word\n")
    real = os.lstat

    def lstat(where: Path, **_options: Any) -> os.stat_result:
        return os.stat_result([*real(where)[:4], 0, *real(where)[5:]])

    monkeypatch.setattr(Path, "lstat", lstat)
    path.chmod(0o600)
    assert database_password_fetch.kept(path) == "word"
    path.chmod(0o640)
    with pytest.raises(Fault, match="chmod 600"):
        database_password_fetch.kept(path)


# --- what the client is told ---


def test_the_client_gets_the_password_in_a_file_without_a_name(program: Program, tmp_path: Path) -> None:
    word = secrets.token_hex(8)
    (tmp_path / "password").write_text(word + "\n")
    show = "import os, sys; path = sys.argv[1].split('=')[1]; text = open(path).read(); mode = os.stat(path).st_mode\n"
    show += "print(oct(mode & 0o777), os.readlink(path)[:7], repr(text), repr(sys.stdin.read()), sep='\\t')\n"
    show += f"assert not any({word!r} in each for each in [*sys.argv, *os.environ.values()])"
    program("mariadb", show)
    server = mariadb.MariaDB({**FAR, "password_file": str(tmp_path / "password"), "ca": "/ca.pem"})
    ((mode, link, text, statements),) = server.ask("SELECT 1", "SELECT 2")
    assert (mode, link) == ("0o600", "/memfd:")
    assert word in text
    assert word not in statements


def test_with_tls_the_chain_and_the_name_are_verified() -> None:
    text = mariadb.option_file({**FAR, "ca": "/ca.pem"}, "a\\b\"c'#d")
    assert 'ssl-ca="/ca.pem"' in text
    assert "\nssl-verify-server-cert\n" in text
    assert 'password="a\\\\b\\"c\'#d"' in text
    assert "skip-ssl" not in text
    without = mariadb.option_file({**FAR, "tls": False}, "word")
    assert "skip-ssl" in without
    assert "ssl-ca" not in without


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ("ERROR 2002 (HY000): Can't connect to server on 'db.example' (115)", ConnectionError, "2002"),
        ("ERROR 2005 (HY000): Unknown server host 'db.example' (-2)", ConnectionError, "2005"),
        ("ERROR 1045 (28000): Access denied for user 'slurm'@'a'", Fault, "does not let slurm in"),
        ("ERROR 2026 (HY000): TLS/SSL error: self-signed certificate in chain", Fault, "accounting_external_ca"),
        ("ERROR 1064 (42000): syntax", Fault, "1064"),
    ],
)
def test_complaints_of_the_client(said: str, kind: type[Exception], words: str) -> None:
    error = mariadb.MariaDB({**FAR, "ca": "/ca.pem"}).error(said)
    assert isinstance(error, kind)
    assert words in str(error)


def test_a_port_where_nobody_listens_is_named_with_the_reason() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(Fault, match=rf"127\.0\.0\.1:{port} within 0 s: Connection refused"):
            mariadb.MariaDB({**FAR, "host": "127.0.0.1", "port": port}).connect(0)


CLIENT = """\
import os, sys
sys.stdin.readline()
os.write(1, {answer!r})
sys.stdin.read()
"""


def test_a_lock_is_had_for_a_while(program: Program) -> None:
    server = mariadb.MariaDB(FAR, password="word")
    program("mariadb", CLIENT.format(answer=b"1\n"))
    with server.locked("one", 5):
        pass
    program("mariadb", CLIENT.format(answer=b"0\n"))
    with pytest.raises(Fault, match="another has the lock"), server.locked("one", 5):
        pass
    program("mariadb", CLIENT.format(answer=b"ERROR 2002 (HY000): no server\n"))
    with pytest.raises(ConnectionError, match="no server"), server.locked("one", 5):
        pass


# --- rights ---


@pytest.mark.parametrize(
    ("grants", "missing", "elsewhere"),
    [
        (["GRANT USAGE ON *.* TO `s`@`%`", "GRANT ALL PRIVILEGES ON `slurm\\_acct\\_db`.* TO `s`@`%`"], False, []),
        (["GRANT USAGE ON *.* TO `s`@`%`", "GRANT ALL PRIVILEGES ON `slurm_acct_db`.* TO `s`@`%`"], False, []),
        (["GRANT USAGE ON *.* TO `s`@`%` IDENTIFIED BY PASSWORD '*X'"], True, []),
        (["GRANT ALL PRIVILEGES ON *.* TO `s`@`%` WITH GRANT OPTION"], False, ["*.*"]),
        (["GRANT ALL PRIVILEGES ON `slurm%`.* TO `s`@`%`"], False, []),
        (["GRANT ALL PRIVILEGES ON `slurm-acct-db`.* TO `s`@`%`"], True, ["slurm-acct-db"]),
        (["GRANT ALL PRIVILEGES ON `slurm\\_acct\\_db`.`one` TO `s`@`%`"], True, []),
        (["GRANT SELECT, INSERT ON `slurm_acct_db`.* TO `s`@`%`"], True, []),
        (["GRANT EXECUTE ON PROCEDURE `slurm_acct_db`.`one` TO `s`@`%`"], True, []),
        # MySQL 8, where roles have most of the rights of RDS's first account.
        (
            ["GRANT SELECT ON *.* TO `admin`@`%`", "GRANT `rds_superuser_role`@`%` TO `admin`@`%`"],
            False,
            ["*.*", "roles"],
        ),
        ([f"GRANT {', '.join(accounting.NEEDED)} ON *.* TO `admin`@`%`"], False, ["*.*"]),
    ],
)
def test_rights_that_are_missing_or_too_many(grants: list[str], missing: bool, elsewhere: list[str]) -> None:
    found = accounting.rights(grants, "slurm_acct_db")
    assert (bool(found[0]), found[1]) == (missing, elsewhere)


@pytest.mark.parametrize(
    ("change", "database"),
    [
        ({"host": "db.example:3306"}, "slurm_acct_db"),
        ({"host": "-x"}, "slurm_acct_db"),
        ({"user": 'a"b'}, "slurm_acct_db"),
        ({"user": ""}, "slurm_acct_db"),
        ({}, "a;b"),
        ({}, "a-b"),
        ({}, "123"),
        ({}, "x" * 65),
    ],
)
def test_words_that_cannot_be_meant_are_refused(change: dict[str, str], database: str) -> None:
    with pytest.raises(Fault):
        database_external.check_words({**FAR, **change}, database)


@pytest.mark.parametrize("database", ["slurm_acct_db", "acct", "2acct", "slurm_acct_db_a1b2c3d4e5f6", "a$b"])
def test_names_that_the_service_allows_are_good(database: str) -> None:
    database_external.check_words(FAR, database)


def test_a_bundle_without_certificates_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    with pytest.raises(Fault, match="No such file"):
        database_external.check_ca(str(path))
    path.write_text("<html>")
    with pytest.raises(Fault, match="accounting_external_ca"):
        database_external.check_ca(str(path))


# --- dumps ---


class Server:
    """A server with some databases: {name: [clusters]}; the client's programs are the test's."""

    def __init__(self, name: str, databases: dict[str, list[str]]) -> None:
        self.name, self.databases = name, databases

    def ask(self, *statements: str) -> list[list[str]]:
        (statement,) = statements
        database = next(name for name in self.databases if name in statement)
        clusters = self.databases[database]
        if "information_schema.tables" in statement:
            return [["cluster_table"]] if clusters else []
        return [[cluster] for cluster in clusters]


def test_a_database_that_other_clusters_use_is_not_overwritten(tmp_path: Path) -> None:
    old, new = Server("here", {"acct": ["demo"]}), Server("there", {"acct": ["demo", "other"]})
    with pytest.raises(Fault, match="other"):
        accounting_move.move((old, "acct"), (new, "acct"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_dump_is_there_whole_or_not_at_all(program: Program, tmp_path: Path) -> None:
    server = mariadb.MariaDB(FAR, password="word")
    program("mariadb-dump", "print('-- half')")
    with pytest.raises(Fault, match="does not end as one does"):
        dump.dump(server, "acct", tmp_path / "kept/a.sql")
    assert not (tmp_path / "kept/a.sql").exists()
    program("mariadb-dump", "print('x\\n' * 1000 + '-- Dump completed on 2026-11-30')")
    dump.dump(server, "acct", tmp_path / "kept/a.sql")
    assert [each.name for each in (tmp_path / "kept").iterdir()] == ["a.sql"]
    assert stat.S_IMODE((tmp_path / "kept/a.sql").stat().st_mode) == 0o600
    program("mariadb-dump", "import sys; sys.exit('mysqldump: Got error: 1045: Access denied')")
    with pytest.raises(Fault, match="Access denied"):
        dump.dump(server, "acct", tmp_path / "kept/b.sql")


@pytest.mark.parametrize("password", ["plain", "a blank, #1 of \\several = 'hard' ones"])
def test_the_database_is_reached_as_slurmdbd_reaches_it(password: str) -> None:
    settings = {"StorageHost": "db.example", "StorageUser": "u", "StorageLoc": "acct"}
    conf = accounting.slurmdbd_conf({**settings, "StorageParameters": "SSL_CA=/ca,A=b"}, password)
    server, name = dump.named_in(conf, "/socket")
    assert (name, server.name, server.password) == ("acct", "db.example:3306", password)
    assert (server.server["user"], server.server["ca"], server.server["tls"]) == ("u", "/ca", True)
    assert dump.named_in("", "/socket")[0].name == "/socket"
    assert dump.named_in("StorageHost=x", "/socket")[0].server["tls"] is False


# --- several controllers ---


def test_a_backup_leaves_slurmctld_to_the_one_in_charge() -> None:
    answer = "Slurmctld(primary) at a is UP\nSlurmctld(backup) at b is UP\n"
    assert slurm.another_in_charge(answer, "b")
    assert not slurm.another_in_charge(answer, "a")
    assert not slurm.another_in_charge(answer.replace("a is UP", "a is DOWN"), "b")
    assert not slurm.another_in_charge("", "a")
    assert not slurm.another_in_charge("Slurmctld(primary) at a is UP\n", "another-name")


class Sacctmgr(slurm_associations_add.Accounting):
    """One whose cluster another controller adds at the same moment."""

    def __init__(self) -> None:
        self.cluster, self.wanted = "demo", {"users": [{"name": "ubuntu"}], "wait_seconds": 0}
        self.clusters: list[list[str]] = []
        self.failures = 1

    def look(self) -> str:
        return ""

    def sacctmgr(self, *words: str) -> str:
        if words[1:3] == ("add", "cluster") and self.failures:
            self.failures -= 1
            self.clusters = [["demo"]]
            raise Fault("This cluster demo already exists. Not adding.")
        return ""

    def show(self, what: str, *_words: str) -> list[list[str]]:
        return self.clusters if what == "cluster" else []


def test_what_another_controller_adds_at_the_same_moment_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_associations_add.time, "sleep", lambda _seconds: None)
    accounts = Sacctmgr()
    assert [words[:2] for words in accounts.see_to()] == [["add", "account"], ["add", "user"]]
    broken = Sacctmgr()
    monkeypatch.setattr(broken, "todo", lambda: [["add", "cluster", "demo"]])
    broken.failures = 9
    with pytest.raises(Fault, match="already exists"):
        broken.see_to()
    assert broken.failures == 6, "three attempts"
