"""A pack is read as it was written, and every other byte string is refused with a clear error."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrun.cache.errors import PackFormatError
from kvrun.cache.pack import (
    FOOTER_BYTES,
    MAX_ENTRIES,
    PackEntry,
    PackFooter,
    PackIndex,
    blocks_in,
    build_pack,
    decode_index,
    encode_index,
    index_context,
    pack_name,
    parse_footer,
)
from kvrun.seal import BlockSealer, IntegrityError, SealedBlockError, sealed_size

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "pack.json").read_text())
ENTRIES = st.lists(
    st.builds(PackEntry, st.binary(min_size=16, max_size=16), st.integers(1, 2**20)),
    min_size=1,
    max_size=20,
)


def index_of(entries: list[PackEntry]) -> PackIndex:
    return PackIndex(b"f" * 32, 1_700_000_000_000_000, tuple(entries))


@given(ENTRIES)
def test_an_index_is_read_as_it_was_written(entries: list[PackEntry]) -> None:
    index = index_of(entries)
    footer = PackFooter(1, 100, index.blocks_bytes)
    name = pack_name(bytes(16), len(entries))
    assert decode_index(encode_index(index), name=name, footer=footer) == index


@given(ENTRIES, st.data())
def test_a_changed_length_count_or_size_of_an_index_is_refused(
    entries: list[PackEntry], data: st.DataObject
) -> None:
    index = index_of(entries)
    plain = bytearray(encode_index(index))
    name, footer = pack_name(bytes(16), len(entries)), PackFooter(1, 100, index.blocks_bytes)
    places = [*range(12), *(52 + 20 * n + 16 + k for n in range(len(entries)) for k in range(4))]
    at = data.draw(st.sampled_from(places))
    plain[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(PackFormatError):
        decode_index(bytes(plain), name=name, footer=footer)


@given(st.binary(max_size=200), st.integers(0, 2**40))
def test_what_does_not_end_as_a_pack_does_is_refused(data: bytes, size: int) -> None:
    with pytest.raises(PackFormatError):
        parse_footer(data, size_bytes=size)


@given(st.integers(0, 10), st.integers(1, 64))
def test_a_pack_cut_anywhere_or_grown_is_no_pack(grown: int, cut: int) -> None:
    pack = build_pack([memoryview(b"x" * 50)], b"sealed index", generation=3)
    assert parse_footer(pack, size_bytes=len(pack)) == PackFooter(3, 12, 50)
    with pytest.raises(PackFormatError):
        parse_footer(pack[:-cut], size_bytes=len(pack) - cut)
    longer = bytes(grown + 1) + pack
    with pytest.raises(PackFormatError):
        parse_footer(longer, size_bytes=len(longer))


def test_a_name_says_how_many_blocks_there_are_and_nothing_else() -> None:
    name = pack_name(bytes(range(16)), 12)
    assert name == "000102030405060708090a0b0c0d0e0f-12.kvp"
    assert blocks_in(name) == 12
    for other in (
        "a.kvp",
        name.upper(),
        name.replace("-12", "-0"),
        name.replace("-12", "-012"),
        name.replace("-12", f"-{MAX_ENTRIES + 1}"),
        f"{name}#1",
        f"x{name}",
    ):
        assert blocks_in(other) is None
    for wrong in (0, MAX_ENTRIES + 1):
        with pytest.raises(ValueError):
            pack_name(bytes(16), wrong)


def test_what_no_pack_can_hold_is_not_written() -> None:
    for entries in (
        [],
        [PackEntry(b"short", 1)],
        [PackEntry(bytes(16), 0)],
        [PackEntry(bytes(16), 2**30)] * 3,
        [PackEntry(bytes(16), 1)] * (MAX_ENTRIES + 1),
    ):
        with pytest.raises(ValueError):
            encode_index(index_of(entries))


@given(st.lists(st.text("ab", min_size=1, max_size=3), min_size=5, max_size=5), st.data())
def test_two_identities_never_share_a_context(texts: list[str], data: st.DataObject) -> None:
    other = list(texts)
    at = data.draw(st.integers(0, 4))
    other[at] = data.draw(st.text("ab", min_size=1, max_size=3).filter(lambda t: t != texts[at]))
    made = [index_context(*each[:4], 1, each[4]) for each in (texts, other)]
    assert made[0] != made[1]
    assert made[0] != index_context(*texts[:4], 2, texts[4])


@pytest.mark.parametrize("vector", VECTORS["packs"], ids=lambda vector: vector["what"])
def test_packs_of_the_independent_script_open_and_are_made_alike(vector: dict[str, Any]) -> None:
    dek, pack = bytearray.fromhex(vector["dek"]), bytes.fromhex(vector["pack"])
    name, generation = vector["name"], int(vector["generation"])
    sealer = BlockSealer(dek, generation=generation)
    footer = parse_footer(pack, size_bytes=len(pack))
    assert footer.generation == generation
    end = len(pack) - FOOTER_BYTES
    sealed = pack[end - footer.index_bytes : end]
    ids = (vector["workspace"], vector["deployment"], vector["tenant"], vector["session"])
    context = index_context(*ids, generation, name)
    assert context.hex() == vector["context"]
    plain = bytearray(len(sealed) - 88)
    sealer.open_into(context, sealed, plain)
    assert plain.hex() == vector["index"]
    index = decode_index(bytes(plain), name=name, footer=footer)
    blocks, at = [], 0
    for entry in index.entries:
        blocks.append(memoryview(pack)[at : at + entry.size])
        at += entry.size
    assert [bytes(block).hex() for block in blocks] == vector["blocks"]
    again = bytearray(sealed_size(len(plain)))
    sealer.seal_into(context, encode_index(index), again, salt=bytes.fromhex(vector["salt"]))
    assert build_pack(blocks, bytes(again), generation=generation) == pack
    for wrong in (name.replace("0", "1", 1), name.replace("-2", "-3")):
        with pytest.raises(SealedBlockError):
            sealer.open_into(index_context(*ids, generation, wrong), sealed, plain)
    changed = bytearray(sealed)
    changed[-1] ^= 1
    with pytest.raises(IntegrityError):
        sealer.open_into(context, changed, plain)
