"""The tiny model that tests and benches serve."""

import hashlib
import json
from pathlib import Path

import pytest

from kvrun.models.tiny import TinyShape, ensure_tiny_model, write_tiny_model

pytest.importorskip("torch", reason="the tiny model's weights are written with torch")

SMALL = TinyShape(layers=2, hidden=64, intermediate=96, heads=2, kv_heads=1, head_size=32)


def _digests(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


def test_the_same_seed_gives_the_same_bytes_and_another_seed_other_weights(tmp_path: Path) -> None:
    shapes = {"a": SMALL, "b": SMALL, "c": TinyShape(**{**_fields(SMALL), "seed": 1})}
    for name, shape in shapes.items():
        (tmp_path / name).mkdir()
        write_tiny_model(tmp_path / name, shape)
    a, b, c = (_digests(tmp_path / name) for name in "abc")
    assert a == b
    assert a["model.safetensors"] != c["model.safetensors"]
    assert a["tokenizer.json"] == c["tokenizer.json"]


def test_the_tokenizer_gives_back_any_text(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    write_tiny_model(tmp_path, SMALL)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in ("The quick brown fox.", "Zürich 東京 🎉\n\t x", "a" * 500):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    words = "The statement is executed when the name is bound to the object. " * 20
    assert len(tokenizer.encode(words).ids) < len(words) / 3
    assert tokenizer.get_vocab_size() == SMALL.vocabulary


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_transformers_loads_it_without_missing_or_extra_weights(
    tmp_path: Path, family: str
) -> None:
    transformers = pytest.importorskip("transformers")
    write_tiny_model(tmp_path, TinyShape(**{**_fields(SMALL), "family": family}))
    _, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]


def test_it_is_cached_by_shape_and_made_once(tmp_path: Path) -> None:
    first = ensure_tiny_model(tmp_path, SMALL)
    changed = first.stat().st_mtime_ns
    assert ensure_tiny_model(tmp_path, SMALL) == first
    assert first.stat().st_mtime_ns == changed
    other = ensure_tiny_model(tmp_path, TinyShape(**{**_fields(SMALL), "dtype": "bfloat16"}))
    assert other != first
    assert json.loads((other / "config.json").read_text())["dtype"] == "bfloat16"
    assert sorted(p.name for p in (tmp_path / "models").iterdir()) == sorted(
        [first.name, other.name]
    )


def _fields(shape: TinyShape) -> dict[str, object]:
    return {name: getattr(shape, name) for name in TinyShape.__dataclass_fields__}
