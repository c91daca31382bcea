"""What a bucket may hold of packs, whatever happened to whoever wrote them."""

from __future__ import annotations

from kvrun.cache.pack import FOOTER_BYTES, blocks_in, parse_footer


def assert_whole_packs(objects: dict[str, bytes]) -> None:
    """Every object is a whole pack by its name, its size and its end."""
    for path, data in objects.items():
        name = path.rpartition("/")[2]
        assert blocks_in(name) is not None, f"not a pack: {path}"
        footer = parse_footer(data[-FOOTER_BYTES:], size_bytes=len(data))
        assert footer.blocks_bytes > 0
