"""The demo model: checked against its pinned hash, converted, and cached all at once."""

import hashlib
import json
import subprocess
from pathlib import Path

import jinja2
import pytest

from kvrun.models import demo
from kvrun.models.catalogue import (
    DEFAULT_CONTEXT_WINDOW,
    context_window,
    kv_bytes_per_token,
    model_maximum,
)
from kvrun.models.demo import assemble, ensure_demo_model
from kvrun.models.folders import ModelError, appearing, cache_folder
from kvrun.models.gemma_tokenizer import CHAT_TEMPLATE as GEMMA_TEMPLATE
from kvrun.models.gemma_tokenizer import merges
from kvrun.models.resolve import resolve_model
from kvrun.models.tiny import CHAT_TEMPLATE as TINY_TEMPLATE


def silent(_: str) -> None:
    pass


def test_parts_are_joined_in_order_and_checked(tmp_path: Path) -> None:
    parts = []
    for number in range(3):
        part = tmp_path / f"part{number}"
        part.write_bytes(bytes([number]) * 1000)
        parts.append(part)
    whole = b"".join(part.read_bytes() for part in parts)
    target = assemble(parts, tmp_path / "whole", hashlib.sha256(whole).hexdigest())
    assert target.read_bytes() == whole


def test_content_with_another_hash_is_refused_and_not_kept(tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(b"something else")
    with pytest.raises(ModelError, match="expected " + demo.GGUF_SHA256):
        assemble([tmp_path / "part"], tmp_path / "whole")
    assert not (tmp_path / "whole").exists()


def test_a_failed_installation_names_its_reason_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "WARNING: x\nERROR: no network\n")

    monkeypatch.setattr(subprocess, "run", fails)
    with pytest.raises(ModelError, match="ERROR: no network"):
        ensure_demo_model(tmp_path, silent)
    assert list((tmp_path / "models").iterdir()) == []


def test_a_cached_model_is_not_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models" / demo.DEMO_FOLDER
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("fetched again"))
    assert ensure_demo_model(tmp_path, silent) == folder


def test_a_folder_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "models" / "m"

    def breaks_off() -> None:
        with appearing(target) as scratch:
            (scratch / "half").touch()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        breaks_off()
    assert list(target.parent.iterdir()) == []
    with appearing(target) as scratch:
        (scratch / "a").write_text("first")
        assert not target.exists()
        with appearing(target) as other:
            (other / "a").write_text("second")
    assert (target / "a").read_text() == "second", "who was first stays"
    assert [path.name for path in target.parent.iterdir()] == ["m"]


def test_merges_are_every_split_of_a_piece_in_the_order_of_its_rank() -> None:
    assert merges(["a", "b", "ab", "aba", "ba"]) == [
        ("a", "b"),
        ("a", "ba"),
        ("ab", "a"),
        ("b", "a"),
    ]


@pytest.mark.parametrize("template", [GEMMA_TEMPLATE, TINY_TEMPLATE])
def test_a_second_turn_begins_with_the_first_turns_prompt_and_answer(template: str) -> None:
    # The settings with which transformers, and so the engine, renders templates.
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    render = environment.from_string(template).render
    messages = [{"role": "user", "content": "Why is the sky blue?"}]
    first = render(messages=messages, bos_token="<bos>", add_generation_prompt=True)
    answer = " Since light\n is scattered."
    messages += [
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "And at night?"},
    ]
    second = render(messages=messages, bos_token="<bos>", add_generation_prompt=True)
    assert second.startswith(first + answer + "\n")


def test_the_cache_folder_follows_xdg() -> None:
    assert cache_folder({"XDG_CACHE_HOME": "/x", "HOME": "/h"}) == Path("/x/kvrun")
    assert cache_folder({"HOME": "/h"}) == Path("/h/.cache/kvrun")


def test_the_context_window_is_configured_known_or_32000_and_never_above_the_model() -> None:
    assert context_window("m", 5000, 8192) == 5000
    assert context_window("m", None, None) == DEFAULT_CONTEXT_WINDOW == 32_000
    assert context_window("m", None, 8192) == 8192
    with pytest.raises(ModelError, match=r"9000.*8192"):
        context_window("m", 9000, 8192)


def test_a_models_facts_come_from_its_configuration(tmp_path: Path) -> None:
    config = {
        "text_config": {
            "max_position_embeddings": 4096, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 1, "head_dim": 64,
        }
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert model_maximum(tmp_path) == 4096
    assert kv_bytes_per_token(tmp_path, 2) == 2 * 2 * 1 * 64 * 2
    with pytest.raises(ModelError, match="no config"):
        model_maximum(tmp_path / "absent")


def test_a_model_folder_that_does_not_exist_is_an_error_and_a_hub_id_is_not() -> None:
    assert resolve_model("org/model", silent) == "org/model"
    with pytest.raises(ModelError, match="no such folder"):
        resolve_model("/no/such/model", silent)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_real_demo_model_is_fetched_converted_and_knows_when_water_boils(
    tmp_path: Path,
) -> None:
    transformers = pytest.importorskip("transformers")
    said: list[str] = []
    folder = ensure_demo_model(tmp_path, said.append)
    assert "ready" in said[-1]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    inputs = tokenizer("Water boils at a temperature of", return_tensors="pt")
    assert inputs["input_ids"][0, 0] == tokenizer.bos_token_id
    output = model.generate(**inputs, max_new_tokens=8, do_sample=False)
    assert "100 degrees" in tokenizer.decode(output[0])
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, tokenize=False
    )
    assert chat == "<bos>User: Hi\n\nAssistant:"
