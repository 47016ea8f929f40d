# SPDX-License-Identifier: Apache-2.0
"""The list of users in both formats."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import CASES

from hyperpod_lifecycle.errors import InputError
from hyperpod_lifecycle.users import User, Users, load

TEXT = CASES / "14-shared_users.txt"


def write(folder: Path, content: str | bytes, name: str = "shared_users.txt") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def problems(path: Path) -> list[tuple[str, str]]:
    with pytest.raises(InputError) as caught:
        load(path)
    assert {problem.file for problem in caught.value.problems} == {str(path)}
    assert all(problem.remedy and str(problem).isprintable() for problem in caught.value.problems)
    return [(problem.key, problem.found) for problem in caught.value.problems]


def test_every_wrong_line_of_the_sample_is_named_at_once() -> None:
    assert problems(TEXT) == [
        ("line 5", "the uid 2001 again (first at line 1)"),
        ("line 6", 'the name "root" is that of an account or a group of the image'),
        ("line 7", 'no uid for "eve"'),
    ]


def test_the_other_lines_of_the_sample_are_users(tmp_path: Path) -> None:
    lines = TEXT.read_bytes().splitlines(keepends=True)
    path = write(tmp_path, b"".join(line for number, line in enumerate(lines, 1) if number not in (5, 6, 7)))
    assert load(path).users == (
        User("ada", 2001, "/fsx/ada", ""),
        User("bea", 2002, "/fsx/bea", ""),
        User("fay", 2006, "", ""),
        User("gus", 2007, "/fsx/gus", ""),
    )


def test_the_flat_sample() -> None:
    users = (User("ada", 2001, "/fsx/ada", ""), User("bea", 2002, "/fsx/bea", ""))
    assert load(CASES / "14-shared_users-flat.yaml").users == users


def test_the_groups_sample_has_one_uid_twice() -> None:
    assert problems(CASES / "14-shared_users-groups.yaml") == [
        ("groups[1].users[0].uid", "the uid 2001 again (first at groups[0].users[0].uid)")
    ]


def test_account_and_mount_come_from_the_nearest_level(tmp_path: Path) -> None:
    sample = (CASES / "14-shared_users-groups.yaml").read_text()
    third = "{username: cy, uid: 2003, slurm_account: own, home: /h/cy}"
    text = sample.replace("bea\n        uid: 2001", f"bea\n        uid: 2002\n      - {third}")
    assert load(write(tmp_path, text, "shared_users.yaml")).users == (
        User("ada", 2001, "", "lab-a"),
        User("bea", 2002, "/home/bea", "root"),
        User("cy", 2003, "/h/cy", "own"),
    )


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("ada", "found 1 field"),
        ("ada,2001,/a,x", "found 4 fields"),
        (",2001", "no name"),
        ("Ada,2001", 'the name "Ada"'),
        ("a;b,2001", 'the name "a;b"'),
        ("a" * 33 + ",2001", f'the name "{"a" * 33}"'),
        ("username,uid,home", 'the uid "uid"'),
        ("ada,-1", 'the uid "-1"'),
        ("ada,\u0662\u0660", 'the uid "\u0662\u0660"'),
        ("ada,0", 'the uid 0 of "ada" is that of root on the image'),
        ("ada,33", 'the uid 33 of "ada" is one of Debian\'s own accounts'),
        ("ada,992", 'the uid 992 of "ada" is that of slurm on the image'),
        ("ada,991", 'the uid 991 of "ada" is that of munge on the image'),
        ("ada,1000", 'the uid 1000 of "ada" is that of ubuntu on the image'),
        ("ubuntu,2001", 'the uid 2001 of "ubuntu", which has 1000 on the image'),
        ("ada,65534", 'the uid 65534 of "ada" is not for a user'),
        ("ada,4294967296", 'the uid 4294967296 of "ada" is not for a user'),
        ("slurm,2001", 'the name "slurm" is that of an account or a group of the image'),
        ("docker,2001", 'the name "docker" is that of an account or a group of the image'),
        ("none,2001", 'the placeholder "none"'),
        ("ada,None", 'the placeholder "None"'),
        ("ada,2001,None", 'the placeholder "None"'),
        ("ada,2001,fsx/ada", 'the home "fsx/ada" is not a plain absolute path'),
        ("ada,2001,/fsx/../ada", 'the home "/fsx/../ada" is not a plain absolute path'),
        ("ada,2001,//fsx/ada", 'the home "//fsx/ada" is not a plain absolute path'),
        ("ada,2001,/fsx/a:b", 'the home "/fsx/a:b" is not a plain absolute path'),
        ("ada,2001,/etc/ada", 'the home "/etc/ada" is in a system directory'),
        ("ada,2001,/root", 'the home "/root" is in a system directory'),
        ("ada,2001,/opt/slurm/ada", 'the home "/opt/slurm/ada" is in a system directory'),
        ("ada,2001,/", 'the home "/" is a top-level directory, which may be a mount point'),
        ("ada,2001,/fsx/", 'the home "/fsx" is a top-level directory, which may be a mount point'),
        ("ada,2001,/fsx/<user>", 'the placeholder "/fsx/<user>"'),
    ],
)
def test_a_wrong_line(tmp_path: Path, line: str, found: str) -> None:
    assert problems(write(tmp_path, f"# users\n{line}\n")) == [("line 2", found)]


def test_two_users_do_not_share_a_home(tmp_path: Path) -> None:
    path = write(tmp_path, "ada,2001,/fsx/team\nbea,2002,/fsx/team/\n")
    assert problems(path) == [("line 2", "the home /fsx/team again (first at line 1)")]


def test_a_final_slash_of_a_home_means_nothing(tmp_path: Path) -> None:
    assert load(write(tmp_path, "ada,2001,/fsx/ada/\n")).users == (User("ada", 2001, "/fsx/ada", ""),)


def test_a_declared_home_is_the_users_field2_case_06() -> None:
    case = CASES / "field-2/06-users-with-a-home-of-their-own"
    assert load(case).users == (User("ada", 2001, "/fsx/team-a/ada", ""),)
    assert [(user.name, user.home) for user in load(case / "yaml-form").users] == [
        ("ada", ""),
        ("bea", "/scratch2/bea"),
    ]


def test_a_name_twice(tmp_path: Path) -> None:
    assert problems(write(tmp_path, "ada,2001\nada,2002\n")) == [("line 2", "the name ada again (first at line 1)")]


@pytest.mark.parametrize(
    ("text", "key", "found"),
    [
        ("users: [", "line 1 column 9", "did not find expected node content|expected the node content"),
        ("- ada", "", "the document is a list"),
        ("users: \x01", "", "special characters are not allowed"),
        ("users: ada", "users", 'found "ada"'),
        ("users:\n  - username: ada", "users[0].uid", "is missing"),
        ("users:\n  - {username: ada, uid: 2001, slurm_acount: x}", "users[*].slurm_acount", "no key is named"),
        (
            "users:\n  - {username: ada, uid: 2001, slurm_account: 'a b'}",
            "users[0].username with slurm_account",
            '"a b"',
        ),
        ("users:\n  - {username: ada, uid: 2001, uid: 2002}", "users[0].uid", "is there 2 times, in lines 2 and 2"),
        ("users: " + "[" * 5000, "", "nested too deep"),
        ("users:\n  - {username: ada, uid: 1.5}", "users[0].uid", 'the uid "1.5"'),
        (
            "shared_filesystem_mount: fsx\nusers: [{username: a, uid: 2007}]",
            "users[0] with shared_filesystem_mount",
            "home",
        ),
    ],
)
def test_wrong_yaml(tmp_path: Path, text: str, key: str, found: str) -> None:
    ((at, what),) = problems(write(tmp_path, text, "shared_users.yaml"))
    assert at == key
    assert any(each in what for each in found.split("|"))


def test_yaml_values_are_what_they_look_like(tmp_path: Path) -> None:
    path = write(tmp_path, "users:\n  - {username: no, uid: 0777}\n  - {username: on, uid: '2002'}\n", "u.yml")
    read = load(path)
    assert [(user.name, user.uid) for user in read.users] == [("no", 777), ("on", 2002)]
    (note,) = read.notes
    assert "users[0].uid: the uid 0777 of no is below 1000" in note


def test_a_key_twice_is_named_with_both_lines_field2_case_07() -> None:
    path = CASES / "field-2/07-users-yaml-key-twice/shared_users.yaml"
    assert problems(path) == [("users", "is there 2 times, in lines 1 and 6")]


def test_ubuntu_may_be_on_the_list_with_its_own_uid(tmp_path: Path) -> None:
    assert load(write(tmp_path, "ubuntu,1000,/fsx/ubuntu\n")).users == (User("ubuntu", 1000, "/fsx/ubuntu", ""),)


def test_of_several_files_in_a_folder_the_text_wins_even_when_empty(tmp_path: Path) -> None:
    assert load(tmp_path) == load(tmp_path / "absent") == Users(None)
    write(tmp_path, "users: [{username: ada, uid: 2001}]", "shared_users.yaml")
    assert load(tmp_path).users == (User("ada", 2001, "", ""),)
    text = write(tmp_path, "")
    read = load(tmp_path)
    assert (read.path, read.users) == (text, ())
    assert read.notes == (f"{tmp_path / 'shared_users.yaml'} is not read, because shared_users.txt is there too",)


@pytest.mark.parametrize("text", ["", "# nothing\n", "users: []\n", "---\n"])
def test_an_empty_list(tmp_path: Path, text: str) -> None:
    assert load(write(tmp_path, text, "shared_users.yaml")).users == ()


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert problems(tmp_path / "users.txt") == [("", "the file does not exist")]
    assert problems(write(tmp_path, "é,1".encode("latin-1"))) == [("", "the text is not UTF-8")]
    (tmp_path / "folder.txt").mkdir()
    assert problems(tmp_path / "folder.txt") == [("", "cannot be read: Is a directory")]


def test_a_file_from_an_editor_with_a_byte_order_mark(tmp_path: Path) -> None:
    assert load(write(tmp_path, b"\xef\xbb\xbfada,2001\r\n")).users == (User("ada", 2001, "", ""),)
