# SPDX-License-Identifier: Apache-2.0
"""Homes on shared storage, as root in a throwaway copy of this machine: sixteen nodes with one file system."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from machine import Machine, copy_of_this_machine

ROOT = Path(__file__).resolve().parents[2]
NODES = 16
UID = 12345
MARK = ".hyperpod-lifecycle-home"

# A node is a mount namespace with its own host name, /etc, and disk. Its users' homes are in /disk/home.
NODE = """
set -eu
hostname "$1"
mount --bind "/nodes/$1/etc" /etc
mount --bind "/nodes/$1/disk" /disk
[ "$2" != /disk/home ] || mount --bind /shared /disk/home
shift 2
exec "$@"
"""

DRIVER = """
import json, sys
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import homes
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.homes import Fault, Home, storage_fault
root, = sys.argv[1:]
fault = storage_fault(root, 60)
account = homes.account(homes.read_accounts(), "ubuntu")
try:
    changed, note = (False, "") if fault else Home(account, f"{root}/ubuntu", 60).make()
except Fault as error:
    changed, note, fault = False, "", str(error)
print(json.dumps({"changed": changed, "note": note, "fault": fault}))
"""

#: Root as a server sees it that squashes it: a user without rights to the files of others.
SQUASHED = ("setpriv", "--bounding-set=-chown,-dac_override,-dac_read_search,-fowner", "--inh-caps=-all")


class Site(Machine):
    """Nodes with a folder /shared that is mounted at /fsx, or over each node's /disk/home."""

    def prepare(self) -> None:
        shutil.copytree(ROOT / "collection", self.path("/collections/ansible_collections/hyperpod/lifecycle"))
        self.path("/driver.py").write_text(DRIVER)
        for folder in ("/shared", "/fsx", "/nodes", "/disk"):
            self.path(folder).mkdir()
        self.must("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", "/shared")
        self.must("mount", "--bind", "/shared", "/fsx")

    def must(self, *command: str | Path) -> None:
        done = self.run(*command)
        assert done.returncode == 0, done.stdout

    def add_node(self, name: str, files: dict[str, str]) -> None:
        """A node whose image has a user `ubuntu` with these files in its home."""
        etc = self.path(f"/nodes/{name}/etc")
        (etc / "skel").mkdir(parents=True)
        (etc / "skel/.profile").write_text("skeleton")
        (etc / "passwd").write_text(f"root:x:0:0::/root:/bin/sh\nubuntu:x:{UID}:{UID}:U,,,:/disk/home/ubuntu:/bin/sh\n")
        (etc / "group").write_text(f"ubuntu:x:{UID}:\n")
        home = self.home(name)
        home.mkdir(parents=True)
        for path, text in files.items():
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            (home / path).write_text(text)
            (home / path).chmod(0o600 if path.startswith(".ssh") else 0o640)
        self.must("chown", "-R", f"{UID}:{UID}", f"/nodes/{name}/disk/home/ubuntu")
        home.chmod(0o700)

    def home(self, name: str) -> Path:
        return self.path(f"/nodes/{name}/disk/home/ubuntu")

    def account(self, name: str) -> str:
        return self.path(f"/nodes/{name}/etc/passwd").read_text().splitlines()[1]

    def start(self, name: str, root: str, *before: str) -> subprocess.Popen[str]:
        command = ["env", "PYTHONPATH=/collections", "PYTHONDONTWRITEBYTECODE=1", sys.executable, "/driver.py", root]
        node = ["unshare", "--mount", "--uts", "sh", "-c", NODE, "sh", name, root, *before]
        return subprocess.Popen(self.command(*node, *command), stdout=subprocess.PIPE, text=True)

    def homes(self, *names: str, root: str = "/fsx", before: tuple[str, ...] = ()) -> list[dict[str, Any]]:
        """Make the homes of some nodes at once."""
        return [answer(process) for process in [self.start(name, root, *before) for name in names]]

    def tree(self, folder: Path | None = None) -> dict[str, tuple[Any, ...]]:
        """Every file with its owner, mode and content."""
        folder = folder or self.path("/shared")
        found = {}
        for path in sorted(folder.rglob("*")):
            state = path.lstat()
            text = path.read_text() if path.is_file() else None
            found[str(path.relative_to(folder))] = (state.st_uid, state.st_gid, oct(state.st_mode), text)
        return found


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    read: dict[str, Any] = json.loads(output)
    return read


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with copy_of_this_machine(tmp_path) as machine:
        site = Site(machine.pid)
        site.prepare()
        yield site


def right(*answers: dict[str, Any]) -> bool:
    return not any(each["changed"] or each["fault"] for each in answers)


def image(node: str = "") -> dict[str, str]:
    """What an image has in the home, and what is only this node's."""
    own = {
        f"notes/{node}.txt": node,
        ".ssh/id_rsa": f"private {node}",
        ".ssh/id_rsa.pub": f"public {node}",
        ".profile": f"profile of {node}",
    }
    keys = ["ssh-rsa AAAAcommon all\n"] + [f"ssh-rsa AAAA{node.replace('-', '')} {node}\n"] * bool(node)
    return {".bashrc": "alike", "a/b/c": "deep", ".ssh/authorized_keys": "".join(keys), **(own if node else {})}


@pytest.mark.parametrize("root", ["/fsx", "/disk/home"])
def test_sixteen_nodes_at_once_with_homes_that_differ_lose_nothing(site: Site, root: str) -> None:
    names = [f"node-{number}" for number in range(NODES)]
    for name in names:
        site.add_node(name, image(name))
    before = {name: site.tree(site.home(name)) for name in names}
    answers = site.homes(*names, root=root)
    assert [each["fault"] for each in answers] == [""] * NODES
    made = site.tree()
    texts = {path.removeprefix("ubuntu/"): state[3] for path, state in made.items() if state[3] is not None}
    keys = texts[".ssh/authorized_keys"].splitlines()
    assert sorted(keys) == sorted(["ssh-rsa AAAAcommon all"] + [f"ssh-rsa AAAAnode{n} node-{n}" for n in range(NODES)])
    assert {f"notes/{name}.txt": name for name in names}.items() <= texts.items()
    assert texts[".ssh/id_rsa"].replace("private", "public") == texts[".ssh/id_rsa.pub"], "a pair of one node"
    assert set(texts) == {*image("x"), *(f"notes/{name}.txt" for name in names)} - {"notes/x.txt"}
    assert {state[:2] for state in made.values()} == {(UID, UID)}
    assert made["ubuntu"][2] == "0o40700"
    for name in names:
        assert site.account(name) == f"ubuntu:x:{UID}:{UID}:U,,,:{root}/ubuntu:/bin/sh"
        after = site.tree(site.home(name))
        assert after.pop(MARK) == (UID, UID, "0o100600", f"{root}/ubuntu\n")
        assert after == before[name], "the old home stays"
    assert sum(".ssh/id_rsa, .ssh/id_rsa.pub" in each["note"] for each in answers) == NODES - 1
    assert right(*site.homes(*names, root=root))
    assert site.tree() == made


@pytest.mark.parametrize("root", ["/fsx", "/disk/home"])
def test_sixteen_nodes_at_once_leave_the_tree_that_one_leaves(site: Site, root: str) -> None:
    names = [f"node-{number}" for number in range(NODES + 1)]
    for name in names:
        site.add_node(name, image())
    (alone,) = site.homes(names.pop(), root=root)
    assert alone == {"changed": True, "note": "", "fault": ""}
    one = site.tree()
    shutil.rmtree(site.path("/shared/ubuntu"))
    answers = site.homes(*names, root=root)
    assert [(each["note"], each["fault"]) for each in answers] == [("", "")] * NODES
    assert site.tree() == one
    assert right(*site.homes(*names, root=root))


@pytest.mark.parametrize("root", ["/fsx", "/disk/home"])
def test_root_that_is_squashed_works_as_the_user(site: Site, root: str) -> None:
    names = [f"node-{number}" for number in range(4)]
    for name in names:
        site.add_node(name, image(name))
    site.must("chown", "65534:65534", "/shared")
    site.must("chmod", "1777", "/shared")
    assert [each["fault"] for each in site.homes(*names, root=root, before=SQUASHED)] == [""] * 4
    assert {state[:2] for state in site.tree().values()} == {(UID, UID)}
    assert len(site.tree()["ubuntu/.ssh/authorized_keys"][3].splitlines()) == 5
    assert site.account("node-3").split(":")[5] == f"{root}/ubuntu"
    assert right(*site.homes(*names, root=root, before=SQUASHED))


def test_root_that_is_squashed_and_no_place_for_the_user_is_one_clear_error(site: Site) -> None:
    site.add_node("node", image())
    site.must("chown", "65534:65534", "/shared")
    (failed,) = site.homes("node", before=SQUASHED)
    assert "neither root nor ubuntu can make /fsx/ubuntu" in failed["fault"]
    assert "mode 1777" in failed["fault"]
    assert site.tree() == {}
    assert site.account("node").split(":")[5] == "/disk/home/ubuntu"


def test_a_home_with_files_keeps_them(site: Site) -> None:
    site.add_node("node", image("node"))
    ssh = site.path("/shared/ubuntu/.ssh")
    ssh.mkdir(parents=True)
    (ssh / "authorized_keys").write_text("ssh-rsa AAAAtheirs")
    (ssh / "id_ed25519").write_text("kept")
    (ssh.parent / ".profile").write_text("kept")
    site.must("chown", "-R", f"{UID}:{UID}", "/shared/ubuntu")
    (made,) = site.homes("node")
    assert made["fault"] == ""
    assert (
        made["note"]
        == "ubuntu: other files are in /fsx/ubuntu, so these were not copied from /disk/home/ubuntu: .profile"
    )
    texts = {path: state[3] for path, state in site.tree().items()}
    assert texts["ubuntu/.ssh/authorized_keys"].splitlines()[0] == "ssh-rsa AAAAtheirs"
    assert len(texts["ubuntu/.ssh/authorized_keys"].splitlines()) == 3
    assert (texts["ubuntu/.ssh/id_ed25519"], texts["ubuntu/.profile"]) == ("kept", "kept")
    assert right(*site.homes("node"))


def test_what_the_user_deletes_later_does_not_come_back(site: Site) -> None:
    site.add_node("node", image("node"))
    for root in ("/fsx", "/disk/home"):
        site.homes("node", root=root)
        (site.path("/shared/ubuntu/.ssh/authorized_keys")).write_text("")
        site.path("/shared/ubuntu/.bashrc").unlink(missing_ok=True)
        assert right(*site.homes("node", root=root))
        assert site.path("/shared/ubuntu/.ssh/authorized_keys").read_text() == ""
    shutil.rmtree(site.path("/shared/ubuntu"))
    assert site.homes("node")[0]["changed"], "a new file system has nothing that could have been deleted"
    assert site.path("/shared/ubuntu/.bashrc").exists()


def test_a_user_that_is_logged_in_is_moved_too(site: Site) -> None:
    site.add_node("node", image())
    sleep = ["setpriv", f"--reuid={UID}", "--clear-groups", "sleep", "60"]
    with subprocess.Popen(site.command(*sleep)) as process:
        try:
            assert site.homes("node")[0]["changed"]
        finally:
            process.kill()
    assert site.account("node").split(":")[5] == "/fsx/ubuntu"


def test_a_user_without_a_home_gets_the_skeleton(site: Site) -> None:
    site.add_node("node", {})
    shutil.rmtree(site.home("node"))
    assert site.homes("node", root="/disk/home") == [{"changed": True, "note": "", "fault": ""}]
    assert site.tree()["ubuntu/.profile"] == (UID, UID, "0o100644", "skeleton")
    assert site.tree()["ubuntu"][2] == "0o40750"


def test_a_home_on_other_storage_stays_and_its_keys_come_along(site: Site) -> None:
    site.add_node("node", {})
    site.path("/big/ubuntu").mkdir(parents=True)
    site.must("mount", "-t", "tmpfs", "tmpfs", "/big")
    shutil.move(site.home("node"), site.path("/big/ubuntu"))
    (site.path("/big/ubuntu") / "data").write_text("big")
    (site.path("/big/ubuntu") / ".ssh").mkdir()
    (site.path("/big/ubuntu") / ".ssh/authorized_keys").write_text("ssh-rsa AAAAa\n")
    site.must("chown", "-R", f"{UID}:{UID}", "/big/ubuntu")
    passwd = site.path("/nodes/node/etc/passwd")
    passwd.write_text(passwd.read_text().replace("/disk/home/ubuntu", "/big/ubuntu"))
    (made,) = site.homes("node")
    assert made["note"] == "ubuntu: the files in /big/ubuntu stay there; only .ssh was copied to /fsx/ubuntu"
    assert set(site.tree()) == {"ubuntu", "ubuntu/.ssh", "ubuntu/.ssh/authorized_keys"}
    assert right(*site.homes("node"))


def test_a_home_of_somebody_else_is_an_error_and_stays_theirs(site: Site) -> None:
    site.add_node("node", image())
    site.path("/shared/ubuntu").mkdir()
    site.must("chown", "777:777", "/shared/ubuntu")
    before = site.tree()
    (failed,) = site.homes("node")
    assert "/fsx/ubuntu belongs to uid 777, and ubuntu has uid 12345" in failed["fault"]
    assert site.tree() == before


def test_what_a_node_that_died_has_begun_is_finished_by_another(site: Site) -> None:
    """After the folder was made and before it was the user's, and with copies half done."""
    site.add_node("node", image())
    site.path("/shared/ubuntu").mkdir()
    assert site.homes("node") == [{"changed": True, "note": "", "fault": ""}]
    one = site.tree()
    assert one["ubuntu"][:2] == (UID, UID)
    site.add_node("other", image())
    for path in ("a/b/c", ".ssh/authorized_keys"):
        site.path(f"/shared/ubuntu/{path}").unlink()
    assert site.homes("other") == [{"changed": True, "note": "", "fault": ""}]
    assert site.tree() == one


def test_a_users_link_does_not_lead_root_astray(site: Site) -> None:
    site.add_node("node", image())
    site.path("/secret").mkdir(0o700)
    site.path("/shared/ubuntu").mkdir()
    site.path("/shared/ubuntu/.ssh").symlink_to("/secret")
    site.must("chown", "-hR", f"{UID}:{UID}", "/shared/ubuntu")
    (made,) = site.homes("node")
    assert list(site.path("/secret").iterdir()) == []
    assert ".ssh" in made["fault"] + made["note"]


def test_without_a_mounted_file_system_nothing_happens(site: Site) -> None:
    site.add_node("node", image())
    site.must("umount", "/fsx")
    (failed,) = site.homes("node")
    assert failed["fault"] == "no shared file system is mounted at /fsx"
    assert list(site.path("/fsx").iterdir()) == []
    assert site.account("node").split(":")[5] == "/disk/home/ubuntu"


def play(site: Site, *options: str, before: tuple[str, ...] = (), **variables: Any) -> subprocess.CompletedProcess[str]:
    """The role itself, on the machine's copy."""
    playbook = [{"hosts": "all", "gather_facts": False, "roles": ["hyperpod.lifecycle.homes"]}]
    site.path("/play.yml").write_text(json.dumps(playbook))
    settings = ["ANSIBLE_COLLECTIONS_PATH=/collections", "LC_ALL=C.UTF-8", "HOME=/root", "PATH=/usr/sbin:/usr/bin"]
    ansible = [str(Path(sys.executable).with_name("ansible-playbook")), "--connection=local", "--inventory=node,"]
    variables = {"ansible_python_interpreter": sys.executable, **variables}
    return site.run(
        *before, "env", "-i", *settings, *ansible, f"--extra-vars={json.dumps(variables)}", *options, "/play.yml"
    )


def test_the_role(site: Site) -> None:
    site.run("userdel", "ubuntu")  # some machines have one
    site.must("useradd", "--create-home", f"--uid={UID}", "ubuntu")
    lustre = {"kind": "lustre", "dns_name": "a", "mount_name": "b", "mount_path": "/fsx"}
    openzfs = {"kind": "openzfs", "dns_name": "c", "mount_name": None, "mount_path": "/zfs"}
    user = {"name": "ada", "uid": 2001, "home": "", "slurm_account": ""}
    contract: dict[str, Any] = {"hyperpod_file_systems": [], "hyperpod_users": [user]}

    done = play(site, **contract)
    assert "changed=0" in done.stdout, done.stdout
    assert "no shared file system" in done.stdout

    contract["hyperpod_file_systems"] = [lustre]
    done = play(site, "--tags=verify", **contract)
    assert done.returncode != 0
    assert "not right: the home of ubuntu at /fsx/ubuntu; correct it" in done.stdout, done.stdout
    assert "changed=1" in play(site, "--check", **contract).stdout
    assert list(site.path("/shared").iterdir()) == []

    done = play(site, **contract)
    assert "changed=1" in done.stdout, done.stdout
    assert site.run("sh", "-c", "echo ~ubuntu").stdout == "/fsx/ubuntu\n"
    done = play(site, "--diff", "--verbose", **contract)
    assert "changed=0" in done.stdout, done.stdout
    assert "no account on this node for ada" in done.stdout

    contract["hyperpod_file_systems"] = [lustre, openzfs]
    done = play(site, "--verbose", **contract)
    assert "changed=0" in done.stdout, done.stdout
    assert "ubuntu: the home stays at /fsx/ubuntu; homes_move moves it to /zfs/ubuntu" in done.stdout
    assert "changed=1" in play(site, "--check", **contract, homes_move=True).stdout
    done = play(site, **contract, homes_move=True)
    assert done.returncode != 0
    assert "ubuntu gets no home at /zfs/ubuntu: no shared file system is mounted at " in done.stdout, done.stdout
    assert "mount it first: hyperpod-lifecycle apply --tags fsx" in done.stdout

    site.must("useradd", "ada")
    done = play(site, **contract, homes_root="/fsx")
    assert done.returncode != 0
    assert "the list of users says 2001" in done.stdout


def users_of(site: Site, *names: str) -> dict[str, Any]:
    """The contract of a list whose users have these homes on the list, and accounts with homes on the node's disk."""
    users = []
    for number, name in enumerate(names, 2001):
        site.run("userdel", name)
        site.must("useradd", "--create-home", f"--uid={number}", name)
        users.append({"name": name, "uid": number, "home": f"/fsx/team-a/{name}", "slurm_account": ""})
    lustre = {"kind": "lustre", "dns_name": "a", "mount_name": "b", "mount_path": "/fsx"}
    return {"hyperpod_file_systems": [lustre], "hyperpod_users": users, "homes_users": users}


def test_a_home_that_the_list_names_is_the_home(site: Site) -> None:
    """A case of use: the list says /fsx/team-a/ada, the account has it, and files are in it."""
    contract = users_of(site, "ada")
    ada = site.path("/fsx/team-a/ada")
    site.must("mkdir", "--parents", "/fsx/team-a/ada")
    (ada / "data").write_text("hers")
    site.must("chown", "-R", "2001:2001", "/fsx/team-a/ada")
    site.must("usermod", "--home=/fsx/team-a/ada", "ada")
    before = site.tree()
    done = play(site, "--verbose", **contract)
    assert "changed=0" in done.stdout, done.stdout
    assert site.tree() == before
    assert site.run("sh", "-c", "echo ~ada").stdout == "/fsx/team-a/ada\n"


@pytest.mark.parametrize("before", [(), SQUASHED])
def test_a_home_that_the_list_names_is_made(site: Site, before: tuple[str, ...]) -> None:
    contract = users_of(site, "ada", "bea")
    if before:
        site.must("install", "--directory", "--mode=1777", "--owner=65534", "/shared/team-a")
    done = play(site, before=before, **contract)
    assert "changed=1" in done.stdout, done.stdout
    tree = site.tree()
    assert [tree[f"team-a/{name}"][0] for name in ("ada", "bea")] == [2001, 2002]
    assert tree["team-a"][2] == ("0o41777" if before else "0o40755")
    assert site.run("sh", "-c", "echo ~ada ~bea").stdout == "/fsx/team-a/ada /fsx/team-a/bea\n"
    assert "changed=0" in play(site, before=before, **contract).stdout


def test_what_is_wrong_with_one_home_is_found_before_any_change(site: Site) -> None:
    contract = users_of(site, "ada", "bea")
    contract["homes_users"][1]["home"] = "/elsewhere/bea"
    passwd = site.path("/etc/passwd").read_text()
    done = play(site, **contract)
    assert done.returncode != 0
    assert "bea gets no home at /elsewhere/bea: no shared file system is mounted" in done.stdout, done.stdout
    assert "correct the home of bea in the list of users" in done.stdout
    assert site.tree() == {}
    assert site.path("/etc/passwd").read_text() == passwd
    contract["hyperpod_file_systems"] = []
    assert play(site, **contract).returncode != 0, "also where there is no file system at all"


def test_a_home_below_a_file_system_that_is_away_is_not_moved(site: Site) -> None:
    contract = users_of(site, "ada")
    contract["homes_users"][0]["home"] = ""
    contract["hyperpod_file_systems"].append({"kind": "openzfs", "dns_name": "c", "mount_path": "/zfs"})
    site.must("usermod", "--home=/zfs/ada", "ada")
    done = play(site, homes_root="/fsx", **contract)
    assert done.returncode != 0
    assert "ada gets no home at /zfs/ada" in done.stdout, done.stdout
    assert site.tree() == {}


def test_a_passwd_that_nobody_may_change_is_named(site: Site) -> None:
    contract = users_of(site, "ada")
    if site.run("chattr", "+i", "/etc/passwd").returncode != 0:
        pytest.fail("this file system has no attributes; run the tests on ext4, xfs or overlay")
    try:
        done = play(site, **contract)
    finally:
        site.must("chattr", "-i", "/etc/passwd")
    assert done.returncode != 0
    assert "/etc/passwd is immutable (lsattr -d /etc/passwd); chattr -ia /etc/passwd" in done.stdout, done.stdout
