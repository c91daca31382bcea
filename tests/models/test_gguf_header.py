"""Reading a GGUF file's head, on files made here byte by byte."""

import struct
from pathlib import Path

import pytest

from kvrun.models.folders import ModelError
from kvrun.models.gguf_header import open_gguf


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def field(name: str, kind: int, content: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + content


FIELDS = [
    field("name", 8, text("Zürich")),
    field("count", 4, struct.pack("<I", 7)),
    field("rate", 6, struct.pack("<f", 0.5)),
    field("flag", 7, b"\x01"),
    field("ids", 9, struct.pack("<IQ3i", 5, 3, 1, -2, 3)),
    field("pieces", 9, struct.pack("<IQ", 8, 2) + text("a") + text("")),
]
TENSOR = text("w") + struct.pack("<I2QIQ", 2, 4, 3, 0, 64)
HEAD = b"GGUF" + struct.pack("<IQQ", 3, 1, len(FIELDS)) + b"".join(FIELDS) + TENSOR


def write(folder: Path, content: bytes) -> Path:
    path = folder / "m.gguf"
    path.write_bytes(content)
    return path


def test_fields_of_every_kind_and_the_place_of_a_tensor_are_read(tmp_path: Path) -> None:
    file = open_gguf(write(tmp_path, HEAD + bytes(256)))
    assert file.fields == {
        "name": "Zürich",
        "count": 7,
        "rate": 0.5,
        "flag": True,
        "ids": [1, -2, 3],
        "pieces": ["a", ""],
    }
    (tensor,) = file.tensors
    assert tensor.name == "w"
    assert tensor.shape == (3, 4), "the slowest dimension comes first"
    assert tensor.offset == -(-len(HEAD) // 32) * 32 + 64, "data begins at a multiple of 32"


@pytest.mark.parametrize("length", [3, 8, 20, 60, len(HEAD) - 1])
def test_a_truncated_file_is_an_error(tmp_path: Path, length: int) -> None:
    with pytest.raises(ModelError, match=r"m\.gguf"):
        open_gguf(write(tmp_path, HEAD[:length]))


def test_another_format_or_version_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not a GGUF file"):
        open_gguf(write(tmp_path, b"PK\x03\x04" + bytes(64)))
    with pytest.raises(ModelError, match="version 2, expected 3"):
        open_gguf(write(tmp_path, b"GGUF" + struct.pack("<IQQ", 2, 0, 0)))
