"""A Git bundle in one form only: every byte follows from its refs and objects.

What ``git bundle create`` writes depends on how the repository is packed and on the compressing
library. Here the objects stand in the order of their ids, whole and stored, and so the same
revisions give the same file, which every ``git`` reads. Format: gitformat-bundle (version 2) and
gitformat-pack (version 2). Pure.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha1

from kvrun.evidence.errors import BundleFormatError

MAX_BYTES = 128 << 20
"""Of all objects together: what a reader takes into memory."""
MAX_OBJECTS = 1_000_000
_SIGNATURE = b"# v2 git bundle\n"
_KINDS = {"commit": 1, "tree": 2, "blob": 3, "tag": 4}
_NAMES = {number: name for name, number in _KINDS.items()}
_STORED = b"\x78\x01"
_MOST_STORED = 0xFFFF
_REF = re.compile(rb"([0-9a-f]{40}) (refs/[A-Za-z0-9/_-]{1,200})")
_SUBMODULE = b"160000"


@dataclass(frozen=True, slots=True)
class GitObject:
    """An object as Git names it: ``kind`` is commit, tree, blob or tag."""

    kind: str
    content: bytes

    @property
    def id(self) -> str:
        """Its name: the SHA-1 of kind, size and content."""
        head = f"{self.kind} {len(self.content)}\0".encode()
        return sha1(head + self.content, usedforsecurity=False).hexdigest()

    def refers_to(self) -> Iterator[str]:
        """The objects that it cannot be without. Raises BundleFormatError for a malformed one."""
        if self.kind in ("commit", "tag"):
            yield from _named_in_head(self.content)
        elif self.kind == "tree":
            yield from _entries_of(self.content)


def write_bundle(
    refs: Mapping[str, str], objects: Iterable[GitObject], count: int
) -> Iterator[bytes]:
    """The file in pieces. ``refs`` are ids by name, ``objects`` stand in the order of their ids."""
    head = b"".join(f"{refs[name]} {name}\n".encode() for name in sorted(refs))
    yield _SIGNATURE + head + b"\n"
    digest = sha1(usedforsecurity=False)
    pack = struct.pack(">4sII", b"PACK", 2, count)
    digest.update(pack)
    yield pack
    for item in objects:
        piece = _object_head(_KINDS[item.kind], len(item.content)) + stored(item.content)
        digest.update(piece)
        yield piece
    yield digest.digest()


def read_bundle(data: bytes) -> tuple[dict[str, str], dict[str, GitObject]]:
    """Refs and objects of a bundle in the one form. Raises BundleFormatError for anything else."""
    refs, at = _read_refs(data)
    if data[at : at + 8] != b"PACK\0\0\0\2" or len(data) < at + 32:
        raise BundleFormatError("it holds no pack of version 2")
    if sha1(data[at:-20], usedforsecurity=False).digest() != data[-20:]:
        raise BundleFormatError("the checksum of its pack is wrong")
    (count,) = struct.unpack_from(">I", data, at + 8)
    if count > MAX_OBJECTS:
        raise BundleFormatError(f"it has more than {MAX_OBJECTS} objects")
    objects: dict[str, GitObject] = {}
    at, last = at + 12, ""
    for _ in range(count):
        item, at = _read_object(data, at)
        name = item.id
        if name <= last:
            raise BundleFormatError("its objects are not in the order of their ids")
        last = name
        objects[name] = item
    if at != len(data) - 20:
        raise BundleFormatError("something follows its objects")
    return refs, objects


def missing_of(refs: Iterable[str], objects: Mapping[str, GitObject]) -> set[str]:
    """Objects that are wanted by the refs or by what they lead to, and are not there."""
    missing: set[str] = set()
    seen: set[str] = set()
    todo = list(refs)
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in objects:
            todo += objects[name].refers_to()
        else:
            missing.add(name)
    return missing


def stored(content: bytes) -> bytes:
    """A zlib stream (RFC 1950) that holds ``content`` as it is."""
    pieces = [_STORED]
    for start in range(0, len(content), _MOST_STORED) or (0,):
        piece = content[start : start + _MOST_STORED]
        final = start + len(piece) == len(content)
        pieces += (struct.pack("<BHH", final, len(piece), len(piece) ^ 0xFFFF), piece)
    pieces.append(struct.pack(">I", zlib.adler32(content)))
    return b"".join(pieces)


def _object_head(kind: int, size: int) -> bytes:
    head, size = [kind << 4 | size & 0x0F], size >> 4
    while size:
        head[-1] |= 0x80
        head.append(size & 0x7F)
        size >>= 7
    return bytes(head)


def _read_refs(data: bytes) -> tuple[dict[str, str], int]:
    if not data.startswith(_SIGNATURE):
        raise BundleFormatError("it is no Git bundle of version 2")
    end = data.find(b"\n\n", 0, len(_SIGNATURE) + (1 << 24))
    lines = data[len(_SIGNATURE) : max(end, 0)].split(b"\n")
    refs: dict[str, str] = {}
    last = ""
    for line in lines:
        found = _REF.fullmatch(line)
        if found is None or found[2].decode() <= last:
            raise BundleFormatError("its list of refs is malformed")
        last = found[2].decode()
        refs[last] = found[1].decode()
    return refs, end + 2


def _read_object(data: bytes, at: int) -> tuple[GitObject, int]:
    start = at
    try:
        kind, size, shift = data[at] >> 4 & 7, data[at] & 0x0F, 4
        while data[at] & 0x80:
            at += 1
            size |= (data[at] & 0x7F) << shift
            shift += 7
            if shift > 40:
                raise BundleFormatError("an object is too large")
        at += 1
    except IndexError:
        raise BundleFormatError("it ends within an object") from None
    if kind not in _NAMES or size > MAX_BYTES:
        raise BundleFormatError("it has an object of a kind or size that has no place in it")
    blocks = max(1, -(-size // _MOST_STORED))
    end = at + len(_STORED) + 5 * blocks + size + 4
    body = data[at + len(_STORED) : end - 4]
    content = b"".join(
        body[place + 5 : place + 5 + _MOST_STORED]
        for place in range(0, len(body), _MOST_STORED + 5)
    )
    item = GitObject(_NAMES[kind], content)
    if data[start:end] != _object_head(kind, size) + stored(content):
        raise BundleFormatError("an object is not stored in the one form")
    return item, end


def _named_in_head(content: bytes) -> Iterator[str]:
    for line in content.split(b"\n\n", 1)[0].split(b"\n"):
        word, _, value = line.partition(b" ")
        if word in (b"tree", b"parent", b"object"):
            yield value.decode("ascii", "replace")


def _entries_of(content: bytes) -> Iterator[str]:
    at = 0
    while at < len(content):
        end = content.find(b"\0", at)
        if end < 0 or end + 21 > len(content):
            raise BundleFormatError("a folder in it is malformed")
        mode = content[at:end].partition(b" ")[0]
        if mode != _SUBMODULE:
            yield content[end + 1 : end + 21].hex()
        at = end + 21
