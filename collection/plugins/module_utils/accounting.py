# SPDX-License-Identifier: Apache-2.0
"""Text formats of Slurm accounting and of its database. Uses the standard library only, because it runs on the node."""

from __future__ import annotations

import hashlib
import json
import os
import re

from ansible_collections.hyperpod.lifecycle.plugins.module_utils import slurm
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.hosts import is_here
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.mariadb import quote

#: Characters of a generated password: none with a special meaning in slurmdbd.conf or SQL.
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
PASSWORD = re.compile(r"[A-Za-z0-9]{16,}")

#: From this level on, slurmdbd logs its password.
TALKATIVE = re.compile(r"debug[2-9]|[6-9]", re.IGNORECASE)

HEADER = "# Written whole by hyperpod-lifecycle (role accounting) on each run."
BEGIN = "# hyperpod-lifecycle: begin of {}"
END = "# hyperpod-lifecycle: end of {}"


# --- slurmdbd.conf ---


def unfit(value):
    """Return why slurmdbd.conf cannot hold a value; empty if it can."""
    if not str(value):
        return "it is empty"
    if '"' in str(value):
        return "it has a double quote"
    if not re.fullmatch(r"[ -~]*", str(value)):
        return "it has a character that is not printable ASCII"
    return ""


def conf_value(value):
    """Return a value as written in slurmdbd.conf: a backslash escapes # and itself, quotes protect blanks."""
    escaped = re.sub(r"([\\#])", r"\\\1", str(value))
    return f'"{escaped}"' if " " in escaped else escaped


def slurmdbd_conf(settings, password):
    """Return the content of slurmdbd.conf."""
    lines = [f"{key}={conf_value(value)}" for key, value in [*settings.items(), ("StoragePass", password)]]
    return "\n".join([HEADER, *lines, ""])


def read_slurmdbd_conf(text):
    """Return the settings of slurmdbd.conf by lower-case name."""
    found = {}
    for line in text.splitlines():
        match = re.match(r'\s*(\w+)\s*=\s*(?:"([^"]*)"|((?:\\.|[^\s#\\])+))', line)
        if match:
            found[match[1].lower()] = re.sub(r"\\(.)", r"\1", match[2] if match[2] is not None else match[3])
    return found


def masked(text):
    """Return the text of slurmdbd.conf without its password."""
    return re.sub(r"(?im)^(\s*StoragePass\s*=).*", r"\1********", text)


def place(settings):
    """Return host and database of slurmdbd.conf's settings in normalized form."""
    found = {key.lower(): value for key, value in settings.items()}
    host = found.get("storagehost", "localhost").lower()
    return "localhost" if is_here(host) else host, found.get("storageloc", "slurm_acct_db")


def other_database(text, settings):
    """Return why an existing slurmdbd.conf must not be replaced; empty if it may be."""
    there, wanted = place(read_slurmdbd_conf(text)), place(settings)
    if there == wanted:
        return ""
    return "it names the database {1} on {0}, and here it should be {3} on {2}".format(*there, *wanted)


# --- files that slurm.conf includes ---

_INCLUDE = re.compile(r"^\s*include\s+(\S+)", re.IGNORECASE)


def read(path):
    """Return the text of a Slurm file; empty if it does not exist."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def all_parameters(path, block):
    """Return the settings of slurm.conf and the files that it includes, except those in the block of this name."""
    found = []
    for line in read(path).splitlines():
        include = _INCLUDE.match(line)
        if include:
            text = read(os.path.join(os.path.dirname(path), include[1]))
            found += slurm.parameters(without_block(text, block))
        else:
            found += slurm.parameters(line)
    return found


def _key(line):
    return next((key.lower() for key, _value in slurm.parameters(line)), None)


def split_block(text, name):
    """Return the lines above the block of this name, in it, and below it. Without such a block, all are above."""
    above, inside, below = [], [], []
    now = above
    for line in text.splitlines():
        if line == BEGIN.format(name):
            now = inside
        elif line == END.format(name):
            now = below
        else:
            now.append(line)
    return above, inside, below


def block_settings(text, name):
    """Return the settings of a block."""
    return dict(slurm.parameters("\n".join(split_block(text, name)[1])))


def without_block(text, name):
    """Return the settings outside of the block."""
    above, _inside, below = split_block(text, name)
    return "\n".join([*above, *below])


def with_block(text, name, settings, several=()):
    """Return the file with these settings in a block of this name only. Other settings are kept.

    A block keeps its position, because two blocks that each move to the end would never converge. Settings in `several`
    may occur more than once, so those outside are kept too. Without settings there is no block.
    """
    keys = {key.lower() for key in settings if key not in several}
    above, _inside, below = split_block(text, name)
    block = [BEGIN.format(name), *(f"{key}={value}" for key, value in settings.items()), END.format(name)]
    lines = [line for line in above if _key(line) not in keys]
    lines += block if settings else []
    lines += [line for line in below if _key(line) not in keys]
    return "".join(line + "\n" for line in lines)


def with_include(text, file):
    """Return the text of slurm.conf with an Include of `file`; unchanged if it has one."""
    include = re.compile(rf"(?im)^\s*include\s+(?:\S*/)?{re.escape(file)}\s*(?:#.*)?$")
    if include.search(text):
        return text
    return text + ("" if text.endswith("\n") or not text else "\n") + f"Include {file}\n"


def differing(settings, config):
    """Return the settings that differ in a running slurmctld, by the output of ``scontrol show config``."""
    running = {}
    # Settings with several values are numbered: Prolog[0].
    for key, value in slurm.parameters(re.sub(r"#|\[\d+\]", "", config)):
        running[key.lower()] = f"{running[key.lower()]},{value}" if key.lower() in running else value
    missing = []
    for key, value in settings.items():
        words = set(running.get(key.lower(), "").lower().removesuffix(" sec").split(","))
        # Slurm shows seconds with their unit, and adds its own members to lists.
        if not set(str(value).lower().split(",")) <= words:
            missing.append(key)
    return missing


# --- the cluster id ---


def cluster_id(text):
    """Return the id in slurmctld's ``clustername`` file, or None. Its format is ``name`` or ``name|id``."""
    match = re.search(r"[|=](\d+)\s*$", text)
    return int(match[1]) if match and int(match[1]) else None


def id_mismatch(state_dir, cluster, state_id, database_id):
    """Return an error message if the two ids conflict; empty if they agree or one is not assigned yet."""
    if state_id is None or state_id == database_id:
        return ""
    if database_id is None:
        known = f"the accounting database does not know {cluster} yet and would give it another"
    else:
        known = f"in the accounting database {cluster} has {database_id}"
    return (
        f"CLUSTER ID MISMATCH: slurmctld's state in {state_dir} has cluster id {state_id}, but {known}, so slurmctld "
        "would refuse to start. That is so if slurmctld ran before accounting was set up, or if the database is a new "
        f"one. If {state_dir} is this cluster's and no other cluster uses it: systemctl stop slurmctld, "
        f"rm {state_dir}/clustername (jobs and nodes stay), then hyperpod-lifecycle apply"
    )


# --- associations ---


def rows(text):
    """Return the fields of ``sacctmgr --noheader --parsable2`` output."""
    return [line.split("|") for line in text.splitlines() if line]


def commands(cluster, users, associations, defaults):
    """Return the sacctmgr commands to run, in order.

    `users` is a list of (name, account or empty), `associations` of (account, user), `defaults` a dict of
    each user's default account. sacctmgr shows all names in lower case.
    """
    have = {(account.lower(), user.lower()) for account, user in associations}
    accounts = {account for account, _user in have}
    todo = []
    for name, wish in users:
        account = (wish or "root").lower()
        if account not in accounts:
            accounts.add(account)
            todo.append(["add", "account", account, f"cluster={cluster}"])
        if (account, name.lower()) not in have:
            have.add((account, name.lower()))
            todo.append(["add", "user", name, f"account={account}", f"cluster={cluster}"])
        if wish and defaults.get(name.lower(), account).lower() != account:
            where = ["where", f"name={name}", f"cluster={cluster}"]
            todo.append(["modify", "user", *where, "set", f"defaultaccount={account}"])
    return todo


# --- MariaDB ---


def native_hash(password):
    """Return the hash that MariaDB stores for a password, so that the password itself is never sent."""
    inner = hashlib.sha1(password.encode()).digest()  # noqa: S324 it is MariaDB's format
    return "*" + hashlib.sha1(inner).hexdigest().upper()  # noqa: S324


def ways(priv):
    """Return login methods as (plugin, authentication string) of a database user's mysql.global_priv JSON `priv`."""
    top = {key: priv.get(key, "") for key in ("plugin", "authentication_string")}
    # An empty alternative refers to the top-level keys.
    found = [alternative or top for alternative in priv.get("auth_or", [{}])]
    return [(each.get("plugin", ""), each.get("authentication_string", "")) for each in found]


def only_socket(priv):
    """Return whether this user can log in over the socket only."""
    found = ways(priv)
    return ("unix_socket" in [plugin for plugin, _word in found]) and all(
        plugin == "unix_socket" or word == "invalid" for plugin, word in found
    )


def account_statements(table, user, password_hash):
    """Return statements that restrict root, drop anonymous users and create `user`, from rows of mysql.global_priv."""
    out, ours = [], None
    for name, host, text in table:
        priv = json.loads(text)
        if priv.get("is_role"):
            continue
        who = f"{quote(name)}@{quote(host)}"
        if (name, host) == ("root", "localhost"):
            if not only_socket(priv):
                out.append(f"ALTER USER {who} IDENTIFIED VIA unix_socket")
        elif name in ("root", ""):
            out.append(f"DROP USER {who}")
        elif (name, host) == (user, "localhost"):
            ours = priv
    who = f"{quote(user)}@'localhost'"
    if ours is None:
        out.append(f"CREATE USER {who} IDENTIFIED BY PASSWORD {quote(password_hash)}")
    elif ways(ours) != [("mysql_native_password", password_hash)]:
        out.append(f"ALTER USER {who} IDENTIFIED BY PASSWORD {quote(password_hash)}")
    if ours and ours.get("account_locked"):
        out.append(f"ALTER USER {who} ACCOUNT UNLOCK")
    return out


def grant(database):
    """Return the database's name as written in GRANT, where an underscore is a wildcard."""
    return "`" + database.replace("\\", "\\\\").replace("_", "\\_").replace("%", "\\%") + "`.*"


def granted(grants, database):
    """Return whether SHOW GRANTS has all privileges on the database, written with or without wildcards."""
    wanted = {f"GRANT ALL PRIVILEGES ON {name} TO" for name in (grant(database), f"`{database}`.*")}
    return any(line.startswith(tuple(wanted)) for line in grants)


# --- the external database ---

ARN = re.compile(r"arn:(aws[a-z-]*):secretsmanager:([a-z0-9-]+):([0-9]{12}):secret:(\S+)")

#: Privileges that slurmdbd needs.
NEEDED = frozenset(
    {"SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "DROP", "INDEX", "ALTER"}
    | {"CREATE ROUTINE", "ALTER ROUTINE", "EXECUTE"}
)
_GRANT = re.compile(r"GRANT (.+?) ON (?:(\*)|[`\"]((?:[^`\"]|``)+)[`\"])\.(\*|\S+) TO ")


def region(arn):
    """Return the region of a secret's ARN; None if it is not one."""
    match = ARN.fullmatch(arn)
    return match[2] if match else None


def secret_words(text):
    """Return user (may be empty) and password of a secret, JSON or the plain password; None without a password."""
    try:
        found = json.loads(text)
    except ValueError:
        return "", text.rstrip("\n")
    if not isinstance(found, dict):
        return "", text.rstrip("\n")
    user, password = found.get("username", ""), found.get("password")
    return (user, password) if isinstance(user, str) and isinstance(password, str) else None


def _matches(pattern, database):
    """Return whether the name in a grant, where unescaped % and _ are wildcards, matches the database."""
    if pattern == database:
        return True
    parts = re.findall(r"\\.|.", pattern)
    wild = {"%": ".*", "_": "."}
    return bool(re.fullmatch("".join(wild.get(part) or re.escape(part[-1]) for part in parts), database))


def rights(grants, database):
    """Return the privileges that SHOW GRANTS lacks for the database, and the other databases that it grants access to.

    SHOW GRANTS does not list the privileges of a role. A role counts as sufficient, and as access to other databases.
    """
    missing, elsewhere = set(NEEDED), set()
    for line in grants:
        match = _GRANT.match(line)
        if not match:
            if line.startswith("GRANT") and " ON " not in line.partition(" TO ")[0]:
                missing, elsewhere = set(), elsewhere | {"roles"}
            continue
        given = {word.strip() for word in match[1].split(",")}
        everywhere, pattern = match[2], match[3]
        if given == {"USAGE"}:
            continue
        if everywhere or _matches(pattern, database):
            # A grant on one table does not cover tables that slurmdbd creates later.
            missing = missing if match[4] != "*" else set() if "ALL PRIVILEGES" in given else missing - given
        if everywhere or not _matches(pattern, database):
            elsewhere.add("*.*" if everywhere else pattern)
    return sorted(missing), sorted(elsewhere)
