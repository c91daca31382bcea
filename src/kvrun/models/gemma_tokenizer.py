"""Gemma's tokenizer from a table of SentencePiece pieces: byte-pair merges with byte fallback.

A SentencePiece BPE vocabulary stores only pieces with ranks. Its merges are every way to split a
piece into two known pieces, in the order of the rank of the joined piece.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SPACE = "▁"
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
"""Kinds of a piece in a GGUF token table that are matched before any merge."""

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ message['role'] | capitalize }}:"
    "{% if message['role'] == 'assistant' %}{{ message['content'] }}"
    "{% else %} {{ message['content'] }}{% endif %}{{ '\\n\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""A base model knows no chat format, so turns are plain text. An answer is put back exactly as
it was generated: the next turn's prompt then starts with the very tokens of this one."""


@dataclass(frozen=True, slots=True)
class TokenTable:
    """Pieces and kinds by token id (which is their rank), and the ids of the special ones."""

    pieces: Sequence[str]
    kinds: Sequence[int]
    bos: int
    eos: int
    unknown: int
    padding: int


def write_tokenizer(table: TokenTable, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json; every prompt gets ``<bos>`` in front."""
    document = json.dumps(tokenizer_document(table), ensure_ascii=False)
    (folder / "tokenizer.json").write_text(document, encoding="utf-8")
    names = {"bos": table.bos, "eos": table.eos, "unk": table.unknown, "pad": table.padding}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **{f"{kind}_token": table.pieces[token] for kind, token in names.items()},
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config, indent=2) + "\n", encoding="utf-8"
    )


def merges(pieces: Sequence[str]) -> list[tuple[str, str]]:
    """All merges of a BPE vocabulary whose pieces are in the order of their rank.

    Ties inside one joined piece follow the ranks of its halves.
    """
    ranks = {piece: rank for rank, piece in enumerate(pieces)}
    found: list[tuple[str, str]] = []
    for piece in pieces:
        halves = []
        for cut in range(1, len(piece)):
            left = ranks.get(piece[:cut])
            if left is not None and (right := ranks.get(piece[cut:])) is not None:
                halves.append((left, right))
        halves.sort()
        found.extend((pieces[left], pieces[right]) for left, right in halves)
    return found


def tokenizer_document(table: TokenTable) -> dict[str, Any]:
    """The content of tokenizer.json."""
    bos = table.pieces[table.bos]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added(token, piece, special=table.kinds[token] != USER_DEFINED)
            for token, piece in enumerate(table.pieces)
            # Runs of spaces come from merges: added tokens would be matched before " " is "▁".
            if table.kinds[token] in (CONTROL, UNKNOWN, USER_DEFINED) and piece.strip(SPACE)
        ],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": bos, "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [
                {"SpecialToken": {"id": bos, "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}},
            ],
            "special_tokens": {bos: {"id": bos, "ids": [table.bos], "tokens": [bos]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": table.pieces[table.unknown],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {piece: token for token, piece in enumerate(table.pieces)},
            "merges": merges(table.pieces),
        },
    }


def _added(token: int, piece: str, *, special: bool) -> dict[str, Any]:
    return {
        "id": token,
        "content": piece,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
    }
