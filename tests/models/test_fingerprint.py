"""The fingerprint changes with everything that changes KV, and with nothing else."""

import dataclasses
import json
import os
from pathlib import Path

import pytest

from kvrun.models.fingerprint import (
    FINGERPRINT_BYTES,
    KvFormat,
    cpu_isa,
    model_digest,
    model_fingerprint,
)
from kvrun.models.folders import ModelError

FORMAT = KvFormat(
    dtype="float32", kv_dtype="auto", engine="vllm 0.32.0", layout="LBHNC 128", isa="avx512f"
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"layers": 2}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"\x00" * 4096)
    return folder


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(KvFormat)])
def test_every_part_of_the_kv_format_counts(field: str) -> None:
    digest = bytes(32)
    plain = model_fingerprint(digest, FORMAT)
    other = model_fingerprint(digest, dataclasses.replace(FORMAT, **{field: "other"}))
    assert len(plain) == FINGERPRINT_BYTES
    assert plain != other


def test_text_moved_between_two_fields_is_another_format() -> None:
    one = dataclasses.replace(FORMAT, dtype="ab", kv_dtype="c")
    two = dataclasses.replace(FORMAT, dtype="a", kv_dtype="bc")
    assert model_fingerprint(bytes(32), one) != model_fingerprint(bytes(32), two)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_one_changed_byte_of_a_model_file_changes_the_digest(model: Path, name: str) -> None:
    before = model_digest(model)
    content = bytearray((model / name).read_bytes())
    content[0] ^= 1
    (model / name).write_bytes(content)
    assert model_digest(model) != before


def test_a_renamed_file_changes_the_digest_and_sampling_settings_do_not(model: Path) -> None:
    before = model_digest(model)
    (model / "generation_config.json").write_text('{"temperature": 1}')
    (model / "README.md").write_text("read me")
    assert model_digest(model) == before
    (model / "model.safetensors").rename(model / "model-1.safetensors")
    assert model_digest(model) != before


def test_the_digest_does_not_depend_on_where_the_model_is(model: Path, tmp_path: Path) -> None:
    before = model_digest(model)
    assert model_digest(model.rename(tmp_path / "elsewhere")) == before


def test_a_cached_hash_is_used_until_the_file_changes(model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "hashes.json"
    true = model_digest(model, cache)
    known = json.loads(cache.read_text())
    assert len(known) == 3
    cache.write_text(json.dumps(dict.fromkeys(known, "00" * 32)))
    assert model_digest(model, cache) != true, "the cache was not used"
    weights = model / "model.safetensors"
    for path in model.iterdir():
        os.utime(path, ns=(1, 1))
    assert model_digest(model, cache) == true
    weights.write_bytes(b"\x01" * 4096)
    assert model_digest(model, cache) != true


def test_a_damaged_cache_costs_time_only(model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "hashes.json"
    cache.write_text("[not json")
    assert model_digest(model, cache) == model_digest(model)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        model_digest(tmp_path)


def test_the_instruction_set_comes_from_cpuinfo(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("processor : 0\nflags\t\t: fpu avx2 avx512f amx_bf16 sse\n")
    assert cpu_isa(path) == "amx_bf16,avx512f,avx2"
    assert cpu_isa(tmp_path / "absent") == "unknown"
