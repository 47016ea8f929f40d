# SPDX-License-Identifier: Apache-2.0
"""What the texts of settings must look like: what is right passes, what a role would meet later does not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from conftest import ROOT

from hyperpod_lifecycle.argument_specs import declared
from hyperpod_lifecycle.in_ansible.typed_values import typed_values

ROLES = ["accounting", "containers", "controllers", "slurm"]
SPECS = ROOT / "collection/roles"
#: What these hold is anything that another program takes as JSON.
FREE = {"containers_docker_settings"}


def options(role: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((SPECS / role / "meta/argument_specs.yml").read_text())
    return dict(found["argument_specs"]["main"]["options"])


def patterns(role: str) -> dict[str, dict[str, str]]:
    return dict(yaml.safe_load((SPECS / role / "meta/patterns.yml").read_text()))


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)


@pytest.mark.parametrize("role", ROLES)
def test_every_text_has_a_form(role: str) -> None:
    having_texts = {
        name
        for name, option in options(role).items()
        if option["type"] in ("str", "path", "list", "dict") and "choices" not in option
    }
    assert set(patterns(role)) == having_texts - FREE
    assert all(form["remedy"] for form in patterns(role).values())


@pytest.mark.parametrize("role", ROLES)
def test_the_defaults_have_it(role: str) -> None:
    forms = patterns(role)
    for name, value in yaml.safe_load((SPECS / role / "defaults/main.yml").read_text()).items():
        for text in texts(value):
            if name in forms and "{{" not in text:
                assert re.fullmatch(forms[name]["pattern"], text, re.DOTALL), (name, text)


def test_lists_and_what_is_inside_are_checked_before_anything_changes() -> None:
    wrong = {
        "slurm_log_size": "100MB",
        "slurm_controller_addresses": ["10.0.0.5", "10.0.0.6:6817"],
        "containers_pyxis_checksums": {"0.24.0": "abc"},
        "containers_docker_users": ["ubuntu"],
        "accounting_external_host": "https://db.example",
    }
    found = [str(problem) for problem in typed_values(wrong, declared(SPECS), SPECS, DataLoader()).problems]
    assert len(found) == 4, found
    for words in ("100MB", "10.0.0.6:6817", "found abc", "https://db.example"):
        assert any(words in each for each in found), words


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("slurm_log_size", ["100M", "1", "5k", "2G"], ["100MB", "100 M", "0", "", "5m", "1.5G"]),
        ("slurm_prefix", ["/opt/slurm", "/opt/slurm-24.11"], ["opt", "/opt/", "/opt//x", "/a b", "/opt/*", "", "~/x"]),
        (
            "slurm_address",
            ["10.0.0.5", "ip-10-0-0-5.internal", "fd00::5"],
            ["10.0.0.5:6817", "tcp://a", "", "a b", "-a"],
        ),
        (
            "accounting_external_host",
            ["db.example", ""],
            ["db.example:3306", "mysql://db.example", "db.example/x", "*"],
        ),
        ("accounting_buffer_pool", ["1G", "512M", "1073741824"], ["1GB", "1.5G", "half", "50%"]),
        (
            "accounting_purge_jobs_after",
            ["12month", "12Months", "90days", "48hours"],
            ["", "1year", "12 month", "0day"],
        ),
        ("accounting_database", ["slurm_acct_db", "a$b"], ["a-b", "123", "a;b", "", "x" * 65]),
        ("accounting_external_password_file", ["", "/root/word"], ["root/word", "/root/word\n"]),
        (
            "accounting_external_secret_arn",
            ["", "arn:aws-cn:secretsmanager:cn-north-1:111122223333:secret:a/b+c-AbCdEf"],
            ["slurm-db", "arn:aws:ssm:us-west-2:111122223333:secret:a", "arn:aws:secretsmanager:us-west-2:1:secret:*"],
        ),
        ("accounting_aws", ["aws", "/usr/local/bin/aws"], ["", "aws --debug", "bin/aws"]),
        ("accounting_slurmdbd_settings", ["debug", "a b"], ['"a"', "naïve", "a\nb", ""]),
        ("accounting_cluster_name", ["demo-1"], ["", "a b", "a.b", "x" * 41]),
        ("controllers_shared_dir", ["/fsx", "", "/fsx/slurm"], ["fsx", "/fsx/", "/"]),
        (
            "controllers_sns_topic",
            ["", "arn:aws-us-gov:sns:us-gov-west-1:111122223333:slurm"],
            ["slurm", "arn:aws:sqs:us-west-2:111122223333:slurm", "arn:aws:sns:us-west-2:111122223333:a b"],
        ),
        (
            "controllers_sns_endpoint",
            ["", "http://10.0.0.1:5000", "https://sns.x"],
            ["sns.x", "https://", "https://x/"],
        ),
        (
            "containers_nvidia_repository",
            ["https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH)", "file:/srv/mirror", "file:///srv/m"],
            ["", "nvidia.github.io", "https://*.example", "https://<host>/deb", "https://a b"],
        ),
        ("containers_docker_repository_key_checksum", ["sha256:" + "0a" * 32], ["", "0a" * 32, "sha256:" + "g" * 64]),
        ("containers_enroot_version", ["", "4.2.1"], ["v4.2.1", "latest"]),
        ("containers_enroot_settings", ["${HOME}/enroot", "yes", ""], ["a\nb"]),
        ("containers_pyxis_checksums", ["0" * 64, "sha256:" + "a" * 64], ["0" * 40, "sha1:" + "0" * 40, ""]),
        ("containers_scratch_unit", ["dlami-nvme.service", "opt-x.mount"], ["dlami-nvme", "", "a b.service"]),
        ("containers_docker_users", ["ubuntu", "ada.l"], ["", "a:b", "1", "a b"]),
    ],
)
def test_what_fits_and_what_does_not(name: str, good: list[str], bad: list[str]) -> None:
    pattern = patterns(name.split("_")[0])[name]["pattern"]
    fits = {text: bool(re.fullmatch(pattern, text, re.DOTALL)) for text in good + bad}
    assert fits == {**dict.fromkeys(good, True), **dict.fromkeys(bad, False)}
