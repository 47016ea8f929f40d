# SPDX-License-Identifier: Apache-2.0
"""Text formats of Slurm's accounting and of its database. Standard library only: it runs on the node."""

from __future__ import annotations

import hashlib
import json
import os
import re

from ansible_collections.hyperpod.lifecycle.plugins.module_utils import slurm
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.hosts import is_here
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.mariadb import quote

#: What a made password consists of: nothing that slurmdbd.conf or SQL gives a meaning.
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
PASSWORD = re.compile(r"[A-Za-z0-9]{16,}")

#: From this level on slurmdbd writes its password into its log.
TALKATIVE = re.compile(r"debug[2-9]|[6-9]", re.IGNORECASE)

HEADER = "# Written whole by hyperpod-lifecycle (role accounting) on each run."
BEGIN = "# hyperpod-lifecycle: begin of {}"
END = "# hyperpod-lifecycle: end of {}"


# --- slurmdbd.conf ---


def unfit(value):
    """Why slurmdbd.conf cannot hold a value; empty if it can."""
    if not str(value):
        return "it is empty"
    if '"' in str(value):
        return "it has a double quote"
    if not re.fullmatch(r"[ -~]*", str(value)):
        return "it has a character that is not printable ASCII"
    return ""


def conf_value(value):
    """As slurmdbd.conf has it: a backslash takes away the meaning of # and of itself, quotes that of a blank."""
    escaped = re.sub(r"([\\#])", r"\\\1", str(value))
    return f'"{escaped}"' if " " in escaped else escaped


def slurmdbd_conf(settings, password):
    """The whole file."""
    lines = [f"{key}={conf_value(value)}" for key, value in [*settings.items(), ("StoragePass", password)]]
    return "\n".join([HEADER, *lines, ""])


def read_slurmdbd_conf(text):
    """Its settings by their names in small letters."""
    found = {}
    for line in text.splitlines():
        match = re.match(r'\s*(\w+)\s*=\s*(?:"([^"]*)"|((?:\\.|[^\s#\\])+))', line)
        if match:
            found[match[1].lower()] = re.sub(r"\\(.)", r"\1", match[2] if match[2] is not None else match[3])
    return found


def masked(text):
    """A slurmdbd.conf without its password."""
    return re.sub(r"(?im)^(\s*StoragePass\s*=).*", r"\1********", text)


def place(settings):
    """Host and database of slurmdbd.conf's settings; the same words for the same place."""
    found = {key.lower(): value for key, value in settings.items()}
    host = found.get("storagehost", "localhost").lower()
    return "localhost" if is_here(host) else host, found.get("storageloc", "slurm_acct_db")


def other_database(text, settings):
    """Why a slurmdbd.conf that is there must not be replaced; empty if it may be."""
    there, wanted = place(read_slurmdbd_conf(text)), place(settings)
    if there == wanted:
        return ""
    return "it names the database {1} on {0}, and here it should be {3} on {2}".format(*there, *wanted)


# --- files that slurm.conf includes ---

_INCLUDE = re.compile(r"^\s*include\s+(\S+)", re.IGNORECASE)


def read(path):
    """The text of a file of Slurm's; empty if there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def all_parameters(path, block):
    """Pairs of slurm.conf and of the files that it includes, but those of our own block of this name."""
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
    """The lines above the block of this name, in it, and below it; without such a block all are above."""
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
    """The settings of a block."""
    return dict(slurm.parameters("\n".join(split_block(text, name)[1])))


def without_block(text, name):
    """What others have in a file."""
    above, _inside, below = split_block(text, name)
    return "\n".join([*above, *below])


def with_block(text, name, settings, several=()):
    """The file in which these settings stand once, in a block of this name; what others have set stays.

    A block stays where it is: if each moved to the end, two would never be done. Of `several` settings there may be
    more than one, so those of others stay too. Without settings there is no block.
    """
    keys = {key.lower() for key in settings if key not in several}
    above, _inside, below = split_block(text, name)
    block = [BEGIN.format(name), *(f"{key}={value}" for key, value in settings.items()), END.format(name)]
    lines = [line for line in above if _key(line) not in keys]
    lines += block if settings else []
    lines += [line for line in below if _key(line) not in keys]
    return "".join(line + "\n" for line in lines)


def with_include(text, file):
    """A slurm.conf that includes `file`; unchanged if it does so already."""
    include = re.compile(rf"(?im)^\s*include\s+(?:\S*/)?{re.escape(file)}\s*(?:#.*)?$")
    if include.search(text):
        return text
    return text + ("" if text.endswith("\n") or not text else "\n") + f"Include {file}\n"


def differing(settings, config):
    """Which settings a running slurmctld does not have, by the text of ``scontrol show config``."""
    running = {}
    # Of what may be set several times, each has a number: Prolog[0].
    for key, value in slurm.parameters(re.sub(r"#|\[\d+\]", "", config)):
        running[key.lower()] = f"{running[key.lower()]},{value}" if key.lower() in running else value
    missing = []
    for key, value in settings.items():
        words = set(running.get(key.lower(), "").lower().removesuffix(" sec").split(","))
        # Slurm shows seconds with their unit, and of a list its own members too.
        if not set(str(value).lower().split(",")) <= words:
            missing.append(key)
    return missing


# --- the cluster's number ---


def cluster_id(text):
    """The number in slurmctld's ``clustername`` file, or None: ``name`` and, if it is known, ``|number``."""
    match = re.search(r"[|=](\d+)\s*$", text)
    return int(match[1]) if match and int(match[1]) else None


def id_mismatch(state_dir, cluster, state_id, database_id):
    """What to say of two numbers; empty if they agree or one may still become the other."""
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
    """The fields of ``sacctmgr --noheader --parsable2``."""
    return [line.split("|") for line in text.splitlines() if line]


def commands(cluster, users, associations, defaults):
    """What sacctmgr has to do, in order.

    `users` is a list of (name, account; empty for no wish), `associations` of (account, user), `defaults` a dict of
    each user's default account. sacctmgr writes all names small.
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
    """What MariaDB stores for a password, so that the password itself is never sent."""
    inner = hashlib.sha1(password.encode()).digest()  # noqa: S324 it is MariaDB's format
    return "*" + hashlib.sha1(inner).hexdigest().upper()  # noqa: S324


def ways(priv):
    """How an account may log in: (plugin, stored word) of each alternative; `priv` is mysql.global_priv's JSON."""
    top = {key: priv.get(key, "") for key in ("plugin", "authentication_string")}
    # An empty alternative is the one that stands outside of the list.
    found = [alternative or top for alternative in priv.get("auth_or", [{}])]
    return [(each.get("plugin", ""), each.get("authentication_string", "")) for each in found]


def only_socket(priv):
    """Can this account log in over the socket, and in no other way?"""
    found = ways(priv)
    return ("unix_socket" in [plugin for plugin, _word in found]) and all(
        plugin == "unix_socket" or word == "invalid" for plugin, word in found
    )


def account_statements(table, user, password_hash):
    """Statements that lock down root, drop anonymous accounts and make `user`, from rows of mysql.global_priv."""
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
    """The database's name in GRANT, where an underscore is a wildcard."""
    return "`" + database.replace("\\", "\\\\").replace("_", "\\_").replace("%", "\\%") + "`.*"


def granted(grants, database):
    """Do the lines of SHOW GRANTS give all of the database, written with or without wildcards?"""
    wanted = {f"GRANT ALL PRIVILEGES ON {name} TO" for name in (grant(database), f"`{database}`.*")}
    return any(line.startswith(tuple(wanted)) for line in grants)


# --- a database elsewhere ---

ARN = re.compile(r"arn:(aws[a-z-]*):secretsmanager:([a-z0-9-]+):([0-9]{12}):secret:(\S+)")

#: What slurmdbd does with its tables and procedures.
NEEDED = frozenset(
    {"SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "DROP", "INDEX", "ALTER"}
    | {"CREATE ROUTINE", "ALTER ROUTINE", "EXECUTE"}
)
_GRANT = re.compile(r"GRANT (.+?) ON (?:(\*)|[`\"]((?:[^`\"]|``)+)[`\"])\.(\*|\S+) TO ")


def region(arn):
    """The region that a secret is in; None if this is no ARN of one."""
    match = ARN.fullmatch(arn)
    return match[2] if match else None


def secret_words(text):
    """User (empty if there is none) and password of a secret: JSON with both, or the password alone. None: neither."""
    try:
        found = json.loads(text)
    except ValueError:
        return "", text.rstrip("\n")
    if not isinstance(found, dict):
        return "", text.rstrip("\n")
    user, password = found.get("username", ""), found.get("password")
    return (user, password) if isinstance(user, str) and isinstance(password, str) else None


def _matches(pattern, database):
    """Does the name in a grant, where % and _ are wildcards unless a backslash stands before them, mean it?"""
    if pattern == database:
        return True
    parts = re.findall(r"\\.|.", pattern)
    wild = {"%": ".*", "_": "."}
    return bool(re.fullmatch("".join(wild.get(part) or re.escape(part[-1]) for part in parts), database))


def rights(grants, database):
    """Of the lines of SHOW GRANTS: what an account may not do in the database though it must; where else it may act.

    What a role may do is not listed; it counts as enough, and as more than that.
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
            # A grant for one table does not reach those that slurmdbd makes.
            missing = missing if match[4] != "*" else set() if "ALL PRIVILEGES" in given else missing - given
        if everywhere or not _matches(pattern, database):
            elsewhere.add("*.*" if everywhere else pattern)
    return sorted(missing), sorted(elsewhere)
