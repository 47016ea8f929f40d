# SPDX-License-Identifier: Apache-2.0
"""Formats of single values. Each function returns the remedy for an invalid string, and "" for a valid one."""

from __future__ import annotations

import ipaddress
import re

#: Maximum length of the name of a cluster or an instance group, for the service and the daemons.
NAME_LENGTH = 63
#: Maximum length of a node's name in Slurm: MAX_SLURM_NAME of its slurm_protocol_defs.h, 64, includes the final NUL.
NODE_NAME_LENGTH = 63
#: Maximum length of a partition's name in the accounting database.
PARTITION_LENGTH = 255

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PARTITION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = re.compile(rf"(?=.{{1,253}}$)({_LABEL}\.)+(?=.*[A-Za-z]){_LABEL}")
_FILE_SYSTEM_ID = re.compile(r"fs-[0-9a-f]{8,17}")
_MOUNT_NAME = re.compile(r"[A-Za-z0-9._-]+")
_PATH = re.compile(r"(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+/?")
#: System directories, which can be neither homes nor mount points.
_SYSTEM = re.compile(r"/(bin|boot|dev|etc|lib(32|64|x32)?|opt/(ml|slurm)|proc|root|run|sbin|sys|tmp|usr|var)(/.*)?")
_SECRET = re.compile(r"arn:aws[a-z-]*:secretsmanager:[a-z0-9-]+:[0-9]{12}:secret:\S+")
_TOPIC = re.compile(r"arn:aws[a-z-]*:sns:[a-z0-9-]+:[0-9]{12}:\S+")
_DATABASE_USER = re.compile(r"[!#-~]{1,80}")
_DATABASE = re.compile(r"(?![0-9]+$)[A-Za-z0-9_$]{1,64}")


def instance_name(text: str) -> str:
    """Check the name of an instance, which is a host name, a file name and a Slurm name."""
    rule = "letters, digits, '.', '_' and '-' are allowed, a letter or digit first"
    return "" if _NAME.fullmatch(text) else rule


def name(text: str) -> str:
    """Check the name of a cluster or an instance group."""
    too_long = f"it has {len(text)} characters; {NAME_LENGTH} are allowed" if len(text) > NAME_LENGTH else ""
    return instance_name(text) or too_long


def partition(text: str) -> str:
    """Check the name of a Slurm partition, as slurm.conf allows it."""
    if not _PARTITION.fullmatch(text) or text.upper() == "DEFAULT":
        return "letters, digits, '.', '_' and '-' are allowed in a partition name, but not DEFAULT"
    return f"it has {len(text)} characters; {PARTITION_LENGTH} are allowed" if len(text) > PARTITION_LENGTH else ""


def host(text: str) -> str:
    """Check a DNS name with a domain, or an IP address."""
    if _HOST.fullmatch(text) or _is_address(text):
        return ""
    if _FILE_SYSTEM_ID.fullmatch(text):
        return f"this is the file system's id; its DNS name is such as {text}.fsx.REGION.amazonaws.com"
    if "://" in text or "/" in text or re.search(r":[0-9]*$", text):
        return "a DNS name is expected, without scheme, port and path"
    return "a DNS name is expected, such as NAME.REGION.amazonaws.com"


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def mount_name(text: str) -> str:
    """Check the mount name of a Lustre file system."""
    if _MOUNT_NAME.fullmatch(text) and not _FILE_SYSTEM_ID.match(text):
        return ""
    return "the file system's mount name is expected, as describe-file-systems shows it, such as q7x2nbev"


def mount_path(text: str) -> str:
    """Check a mount point or a directory below one; a final slash is allowed."""
    if not _PATH.fullmatch(text):
        return "an absolute path of letters, digits, '.', '_' and '-' is expected, such as /fsx"
    return "this is a system directory; use a path such as /fsx" if _SYSTEM.fullmatch(text) else ""


def secret_arn(text: str) -> str:
    """Check the ARN of a secret in Secrets Manager."""
    rule = "the secret's ARN is expected, such as arn:aws:secretsmanager:REGION:ACCOUNT:secret:NAME"
    return "" if _SECRET.fullmatch(text) else rule


def topic_arn(text: str) -> str:
    """Check the ARN of an SNS topic."""
    return "" if _TOPIC.fullmatch(text) else "the topic's ARN is expected, such as arn:aws:sns:REGION:ACCOUNT:NAME"


def database_user(text: str) -> str:
    """Check a database user, as slurmdbd.conf allows it."""
    rule = "up to 80 printable ASCII characters are allowed, without blanks and double quotes"
    return "" if _DATABASE_USER.fullmatch(text) else rule


def database(text: str) -> str:
    """Check the name of a database."""
    return "" if _DATABASE.fullmatch(text) else "letters, digits, _ and $ are allowed, at most 64, not digits alone"


def home(text: str) -> str:
    """Return what is wrong with a user's home directory (without a final slash), or ""."""
    if _SYSTEM.fullmatch(text):
        return "is in a system directory"
    if text.startswith("/") and text.count("/") == 1:
        return "is a top-level directory, which may be a mount point"
    return "" if re.fullmatch(r"(/(?!\.{1,2}(/|$))[^/:\s]+)+", text) else "is not a plain absolute path"
