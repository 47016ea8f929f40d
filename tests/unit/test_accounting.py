# SPDX-License-Identifier: Apache-2.0
"""Formats of Slurm's accounting and of its database; tests/e2e has the real ones."""

from __future__ import annotations

import errno
import json
import os
import secrets
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import accounting, files, hosts, slurm
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault, run
from ansible_collections.hyperpod.lifecycle.plugins.modules import secret_file_create, slurm_conf_block

from hyperpod_lifecycle.environment import umask

SETTINGS = {"DbdHost": "localhost", "StorageHost": "localhost", "StorageLoc": "slurm_acct_db"}
STORAGE = {"AccountingStorageType": "accounting_storage/slurmdbd", "AccountingStorageHost": "10.0.0.5"}
OURS = {"AccountingStorageType": ["accounting_storage/none"], "AccountingStorageHost": ["localhost"]}
NATIVE = "mysql_native_password"
SOCKET = {"plugin": "unix_socket"}


def test_slurmdbd_conf_is_settings_and_password_and_can_be_shown_without() -> None:
    text = accounting.slurmdbd_conf(SETTINGS, "Secret123")
    assert dict(slurm.parameters(text)) == {**SETTINGS, "StoragePass": "Secret123"}
    assert "Secret123" not in accounting.masked(text)
    assert "Secret123" not in accounting.masked("storagepass = Secret123\n")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("StorageHost=localhost\nStorageLoc=slurm_acct_db\n", ""),
        ("storagehost=127.0.0.1\n", ""),
        ("StorageHost=x.rds.amazonaws.com # mine\n", "slurm_acct_db on x.rds.amazonaws.com"),
        ("StorageLoc=history\n", "database history on localhost"),
    ],
)
def test_a_slurmdbd_conf_of_another_database_is_known(text: str, reason: str) -> None:
    said = accounting.other_database(text, SETTINGS)
    assert reason in said
    assert bool(reason) == bool(said)


@pytest.mark.parametrize("word", ["plain", "two words", "#1", "back\\slash", "'='", "\\#", " \\"])
def test_what_slurmdbd_conf_holds_comes_out_again(word: str) -> None:
    assert accounting.unfit(word) == ""
    text = accounting.slurmdbd_conf({"A": word, "B": "b"}, word)
    assert accounting.read_slurmdbd_conf(text) == {"a": word, "b": "b", "storagepass": word}


@pytest.mark.parametrize(
    ("word", "reason"),
    [("", "empty"), ('a"b', "double quote"), ("naïve", "printable ASCII"), ("a\nb", "printable ASCII")],
)
def test_what_slurmdbd_conf_cannot_hold_has_a_reason(word: str, reason: str) -> None:
    assert reason in accounting.unfit(word)


def test_blocks_of_several_concerns_settle_at_once() -> None:
    names = ("controllers", "accounting", "observability")
    text = "Theirs=1\n"
    for name in names:
        text = accounting.with_block(text, name, {f"{name}Key": 1})
    for name in names:
        assert accounting.with_block(text, name, {f"{name}Key": 1}) == text
    changed = accounting.with_block(text, "accounting", {"accountingKey": 2})
    assert changed == text.replace("accountingKey=1", "accountingKey=2")
    gone = accounting.with_block(text, "accounting", {})
    assert "accounting" not in gone
    assert accounting.block_settings(gone, "observability") == {"observabilityKey": "1"}


def test_settings_stand_once_whatever_was_there() -> None:
    theirs = "# mine\nAccountingStorageHost=a\n\naccountingstoragetype = b\nAccountingStorageTRES=gres/gpu\n" * 2
    once = accounting.with_block(theirs, "accounting", STORAGE)
    assert once.count("AccountingStorageHost") == once.lower().count("accountingstoragetype") == 1
    assert once.count("# mine") == once.count("TRES") == 2, "what is not ours stays"
    assert accounting.with_block(once, "accounting", STORAGE) == once
    assert accounting.block_settings(once, "accounting") == STORAGE
    assert accounting.block_settings(once, "another") == {}
    less = accounting.with_block(once, "accounting", {})
    assert "slurmdbd" not in less


@pytest.mark.parametrize("there", ["Include accounting.conf", "include /opt/slurm/etc/accounting.conf  # x"])
def test_an_include_that_is_there_is_left(there: str) -> None:
    assert accounting.with_include(f"A=b\n{there}\nC=d", "accounting.conf") == f"A=b\n{there}\nC=d"


@pytest.mark.parametrize("text", ["A=b", "A=b\n", "A=b\n#Include accounting.conf\n", "Include myaccounting.conf\n"])
def test_a_missing_include_comes_last(text: str) -> None:
    after = accounting.with_include(text, "accounting.conf")
    assert after == text.rstrip("\n") + "\nInclude accounting.conf\n"


@pytest.mark.parametrize(
    ("config", "missing"),
    [
        ("AccountingStorageHost   = 10.0.0.5\nGresTypes               = gpu,neuron\n", []),
        ("AccountingStorageHost   = 10.0.0.50\nGresTypes               = gpu\n", ["AccountingStorageHost"]),
        ("AccountingStorageHost   = 10.0.0.5\nGresTypes               = (null)\n", ["GresTypes"]),
        ("", ["AccountingStorageHost", "GresTypes"]),
    ],
)
def test_what_a_running_slurmctld_lacks(config: str, missing: list[str]) -> None:
    assert accounting.differing({"AccountingStorageHost": "10.0.0.5", "GresTypes": "gpu"}, config) == missing


@pytest.mark.parametrize(
    ("text", "number"), [("demo|1461", 1461), ("demo|1461\n", 1461), ("demo", None), ("demo|0", None), ("", None)]
)
def test_cluster_id(text: str, number: int | None) -> None:
    assert accounting.cluster_id(text) == number


def test_only_numbers_that_cannot_become_one_are_a_mismatch() -> None:
    assert accounting.id_mismatch("/s", "demo", None, 7) == ""
    assert accounting.id_mismatch("/s", "demo", 7, 7) == ""
    for stored in (8, None):
        said = accounting.id_mismatch("/s", "demo", 7, stored)
        assert "CLUSTER ID MISMATCH" in said
        assert "rm /s/clustername" in said


def test_associations_are_added_once_and_never_taken_away() -> None:
    users = [("ubuntu", ""), ("ada", "Physics"), ("bea", "physics"), ("ada", "physics")]
    todo = accounting.commands("demo", users, [("root", ""), ("root", "root")], {})
    assert [words[:3] for words in todo] == [
        ["add", "user", "ubuntu"],
        ["add", "account", "physics"],
        ["add", "user", "ada"],
        ["add", "user", "bea"],
    ]
    have = [("root", "root"), ("root", "ubuntu"), ("physics", ""), ("physics", "ada"), ("physics", "bea"), ("x", "y")]
    assert accounting.commands("demo", users, have, {"ada": "physics", "ubuntu": "x"}) == []


def test_only_a_wish_changes_the_default_account() -> None:
    have = [("root", "ada"), ("physics", "ada")]
    (words,) = accounting.commands("demo", [("ada", "physics")], have, {"ada": "root"})
    assert words == ["modify", "user", "where", "name=ada", "cluster=demo", "set", "defaultaccount=physics"]
    assert accounting.commands("demo", [("ada", "")], have, {"ada": "physics"}) == []


def test_the_hash_is_mariadbs() -> None:
    # SELECT PASSWORD('secret')
    assert accounting.native_hash("secret") == "*14E65567ABDB5135D0CFD9A70B3032C179A49EE7"


DEBIAN_ROOT = {"plugin": NATIVE, "authentication_string": "invalid", "auth_or": [{}, SOCKET]}


@pytest.mark.parametrize(
    ("priv", "safe"),
    [
        (DEBIAN_ROOT, True),
        (SOCKET, True),
        ({"plugin": NATIVE, "authentication_string": "", "auth_or": [{}, SOCKET]}, False),
        ({"plugin": NATIVE, "authentication_string": "*14E6", "auth_or": [{}, SOCKET]}, False),
        ({"plugin": NATIVE, "authentication_string": ""}, False),
        ({"plugin": NATIVE, "authentication_string": "invalid"}, False),
        ({}, False),
    ],
)
def test_root_has_the_socket_and_nothing_else(priv: dict[str, Any], safe: bool) -> None:
    assert accounting.only_socket(priv) is safe


def test_accounts_of_a_database_that_others_have_set_up() -> None:
    table = [
        ("root", "localhost", json.dumps({"plugin": NATIVE, "authentication_string": ""})),
        ("root", "%", json.dumps(SOCKET)),
        ("", "it's", json.dumps(SOCKET)),
        ("mysql", "localhost", json.dumps(DEBIAN_ROOT)),
        ("slurm", "%", json.dumps({"plugin": NATIVE, "authentication_string": "*X"})),
        ("reader", "", json.dumps({"is_role": True})),
        ("", "", json.dumps({"is_role": True})),
    ]
    assert accounting.account_statements(table, "slurm", "*H") == [
        "ALTER USER 'root'@'localhost' IDENTIFIED VIA unix_socket",
        "DROP USER 'root'@'%'",
        "DROP USER ''@'it\\'s'",
        "CREATE USER 'slurm'@'localhost' IDENTIFIED BY PASSWORD '*H'",
    ]
    ours = {"plugin": NATIVE, "authentication_string": "*H"}
    for priv, statements in (
        (ours, 0),
        ({**ours, "authentication_string": "*X"}, 1),
        ({**ours, "auth_or": [{}, SOCKET]}, 1),
        ({**ours, "account_locked": True}, 1),
    ):
        assert (
            len(accounting.account_statements([("slurm", "localhost", json.dumps(priv))], "slurm", "*H")) == statements
        )


def test_a_grant_is_for_one_database_and_not_for_those_an_underscore_matches() -> None:
    assert accounting.grant("slurm_acct_db") == "`slurm\\_acct\\_db`.*"
    for name in ("slurm\\_acct\\_db", "slurm_acct_db"):
        assert accounting.granted([f"GRANT ALL PRIVILEGES ON `{name}`.* TO `slurm`@`localhost`"], "slurm_acct_db")
    assert not accounting.granted(["GRANT SELECT ON `slurm_acct_db`.* TO `slurm`@`localhost`"], "slurm_acct_db")


# --- files ---


def test_a_secret_is_0600_from_birth_and_what_a_killed_run_left_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "secrets/one"
    path.parent.mkdir()
    path.with_name(f".one.{socket.gethostname()}.new").write_text("half")
    with umask(0):
        secret_file_create.make(path, 40)
    assert path.stat().st_mode & 0o777 == 0o600
    assert accounting.PASSWORD.fullmatch(path.read_text().strip())
    assert [each.name for each in path.parent.iterdir()] == ["one"]


def test_a_file_has_its_owner_and_mode_before_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def fchown(handle: int, uid: int, gid: int) -> None:
        found = os.fstat(handle)
        seen.append((found.st_size, found.st_mode & 0o777, uid, gid))

    monkeypatch.setattr(os, "fchown", fchown)
    path, link = tmp_path / "slurmdbd.conf", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o644)
    link.symlink_to(path)
    files.write_owned(link, "new", 1, 2, 0o600)
    assert seen == [(0, 0o600, 1, 2)]
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert link.is_symlink(), "a folder may hold links to files that controllers share"


@pytest.mark.parametrize(
    ("number", "locked", "said"),
    [
        (errno.ENOSPC, False, "its disk is full"),
        (errno.EDQUOT, False, "the quota there is used up"),
        (errno.EROFS, False, "its file system is read-only"),
        (errno.EPERM, True, "slurm.conf is immutable .*chattr -ia"),
        (errno.EPERM, False, "Operation not permitted"),
        (errno.EBUSY, False, "Device or resource busy"),
    ],
)
def test_a_file_that_cannot_be_written_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, locked: bool, said: str
) -> None:
    path = tmp_path / "slurm.conf"
    path.write_text("old")

    def rename(self: Path, target: Path) -> None:
        raise OSError(number, os.strerror(number), str(self), None, str(target))

    monkeypatch.setattr(Path, "rename", rename)
    monkeypatch.setattr(files, "_locked", lambda each: locked)
    with pytest.raises(Fault, match=f"{path} was not written: .*{said}"):
        files.write(path, "new")
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["slurm.conf"], "nothing is left beside it"


def test_a_file_system_without_flags_has_no_immutable_files(tmp_path: Path) -> None:
    assert not files._locked(tmp_path)
    assert not files._locked(tmp_path / "absent")


@pytest.mark.parametrize("level", ["debug2", "Debug5", "6", "9"])
def test_a_level_at_which_slurmdbd_logs_its_password_is_known(level: str) -> None:
    assert accounting.TALKATIVE.fullmatch(level)


@pytest.mark.parametrize("level", ["", "info", "debug", "5"])
def test_other_levels_are_fine(level: str) -> None:
    assert not accounting.TALKATIVE.fullmatch(level)


CONTROLLERS = [("ip-10-0-0-5", "10.0.0.5"), ("ip-10-0-0-6.us-west-2.compute.internal", "10.0.0.6")]


@pytest.mark.parametrize(
    "there", ["localhost", "10.0.0.5", "ip-10-0-0-5", "IP-10-0-0-5", "ip-10-0-0-5.us-west-2.compute.internal."]
)
def test_accounting_on_this_controller_by_whatever_name_is_its_own(tmp_path: Path, there: str) -> None:
    slurm_conf_block.refuse_others(tmp_path, f"AccountingStorageHost={there}\n", STORAGE, OURS, CONTROLLERS)


@pytest.mark.parametrize("there", ["10.0.0.50", "ip-10-0-0-50", "ip-10-0-0-6", "5", "ip-10-0-0"])
def test_somebody_elses_accounting_is_refused(tmp_path: Path, there: str) -> None:
    with pytest.raises(Fault, match="on another host"):
        slurm_conf_block.refuse_others(tmp_path, f"accountingstoragehost={there}\n", STORAGE, OURS, CONTROLLERS)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("a", "A", True),
        ("a", "a.b.c", True),
        ("a.b.c.", "a", True),
        ("a.b", "a.b.c", False),
        ("a", "ab.c", False),
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.10", False),
        ("10", "10.0.0.1", False),
        ("::1", "0:0:0:0:0:0:0:1", True),
        ("", "", False),
        ("", "a", False),
    ],
)
def test_names_of_one_host(one: str, other: str, same: bool) -> None:
    assert hosts.same_host(one, other) is hosts.same_host(other, one) is same


def test_a_machine_knows_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "ip-10-0-0-5.internal")
    assert all(hosts.is_here(name) for name in ("localhost", "127.0.0.1", "ip-10-0-0-5", "IP-10-0-0-5.internal"))
    assert not any(hosts.is_here(name) for name in ("ip-10-0-0-50", "192.0.2.1", "db.example", ""))
    assert accounting.place({"StorageHost": "ip-10-0-0-5"}) == accounting.place({"StorageHost": "localhost"})


def test_the_include_is_written_with_owner_mode_and_every_other_line(tmp_path: Path) -> None:
    path = tmp_path / "slurm.conf"
    path.write_text("ClusterName=demo\nNodeName=a CPUs=2\n")
    path.chmod(0o640)
    before = slurm_conf_block.read(path)
    files.write(path, slurm_conf_block.include(path, before, "accounting.conf"))
    assert path.read_text() == before + "Include accounting.conf\n"
    assert path.stat().st_mode & 0o777 == 0o640


def test_an_include_that_would_hide_what_the_agent_manages_is_not_written() -> None:
    # The last line is continued, so an include after it would be part of it.
    with pytest.raises(Fault, match="agent manages"):
        slurm_conf_block.include(Path("slurm.conf"), "NodeName=a \\", "accounting.conf")


def test_programs_get_their_input_a_limit_and_no_settings_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    word = secrets.token_hex(4)
    monkeypatch.setenv("MYSQL_PWD", word)
    show = [sys.executable, "-c", "import os, sys; print(sys.stdin.read(), os.environ)"]
    status, out, _err = run(show, 20, "said")
    assert status == 0
    assert "said" in out
    assert word not in out
    assert run([sys.executable, "-c", "import time; time.sleep(9)"], 0.2)[0] == 124
    assert run(["no-such-program"], 1)[0] == 127
