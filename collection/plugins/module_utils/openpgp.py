# SPDX-License-Identifier: Apache-2.0
"""Fingerprints of OpenPGP keys, since a node may have no gpg. Standard library only."""

from __future__ import annotations

import base64
import binascii
import hashlib

PUBLIC_KEY = 6
ARMOUR = b"-----BEGIN PGP PUBLIC KEY BLOCK-----"


def dearmoured(data):
    """The packets of an ASCII-armoured block; what is not armoured is given back. ValueError if it is damaged."""
    if not data.lstrip().startswith(ARMOUR):
        return data
    lines = [line.strip() for line in data.strip().splitlines()]
    try:
        blank = lines.index(b"")
        end = next(number for number, line in enumerate(lines) if line.startswith((b"=", b"-----END")))
        return base64.b64decode(b"".join(lines[blank:end]), validate=True)
    except (StopIteration, binascii.Error) as error:
        raise ValueError("the armour is damaged") from error


def armoured(data):
    """The same key as text, which apt tells from packets by the file's name."""
    if data.lstrip().startswith(ARMOUR):
        return data
    text = base64.b64encode(data)
    lines = [text[place : place + 64] for place in range(0, len(text), 64)]
    return b"\n".join([ARMOUR, b"", *lines, ARMOUR.replace(b"BEGIN", b"END"), b""])


def packets(data):
    """Tag and body of each packet. ValueError if it is no OpenPGP."""
    place = 0
    while place < len(data):
        head = data[place]
        if not head & 0x80:
            raise ValueError("it is no OpenPGP key")
        place += 1
        first = data[place] if place < len(data) else 0
        if head & 0x40:
            tag = head & 0x3F
            if first < 192:
                size, length = 1, first
            elif first < 224:
                size, length = 2, ((first - 192) << 8) + int.from_bytes(data[place + 1 : place + 2], "big") + 192
            elif first == 255:
                size, length = 5, int.from_bytes(data[place + 1 : place + 5], "big")
            else:
                raise ValueError("a packet of it has no fixed length")
        else:
            tag, size = (head >> 2) & 0x0F, {0: 1, 1: 2, 2: 4}.get(head & 3, 0)
            if not size:
                raise ValueError("a packet of it has no fixed length")
            length = int.from_bytes(data[place : place + size], "big")
        place += size
        if place + length > len(data):
            raise ValueError("it ends too early")
        yield tag, data[place : place + length]
        place += length


def fingerprints(data):
    """The fingerprints of all primary keys in it, in capital hexadecimal digits. ValueError if it is no OpenPGP."""
    found = []
    for tag, body in packets(dearmoured(data)):
        if tag == PUBLIC_KEY:
            if body[:1] != b"\x04":
                raise ValueError("a key of it is of another version than 4")
            found.append(hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body).hexdigest().upper())  # noqa: S324
    return found
