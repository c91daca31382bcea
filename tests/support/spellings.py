"""Looking for secrets in the files of an archive: as they are, in hexadecimal and in base64."""

from __future__ import annotations

import base64
import zipfile
from collections.abc import Mapping
from pathlib import Path

MIN_BYTES = 12
"""Shorter secrets would be found by chance."""


def spellings(secret: bytes) -> dict[str, bytes]:
    """What to look for: the longest text that any spelling of the secret must contain."""
    assert len(secret) >= MIN_BYTES, "too short to be looked for"
    found = {"plain": secret, "hex": secret.hex().encode(), "HEX": secret.hex().upper().encode()}
    for shift in range(3):
        # Base64 of a text around it: the characters that follow from the secret alone.
        coded = base64.b64encode(bytes(shift) + secret)
        first, last = -(-shift * 8 // 6), (shift + len(secret)) * 8 // 6
        found[f"base64+{shift}"] = coded[first:last]
        found[f"base64url+{shift}"] = coded[first:last].translate(bytes.maketrans(b"+/", b"-_"))
    return found


def seen_in(path: Path, secrets: Mapping[str, bytes]) -> list[tuple[str, str, str]]:
    """(file, secret, spelling) for everything of ``secrets`` that an archive's files hold."""
    wanted = [
        (name, how, text)
        for name, secret in secrets.items()
        for how, text in spellings(secret).items()
    ]
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    return [
        (file, name, how)
        for file, content in contents.items()
        for name, how, text in wanted
        if text in content or text in file.encode()
    ]
