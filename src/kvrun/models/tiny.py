"""A tiny seeded model for tests and benches: random weights, a real tokenizer, made in seconds.

Its answers mean nothing but are the same everywhere: weights come from a seeded generator, the
tokenizer is trained on the help text that ships with Python. The ``gemma3`` family has sliding
and full attention layers, so an engine gives it several KV groups.
"""

import hashlib
import importlib
import json
import math
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from kvrun.models.folders import appearing

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
BOS, EOS, PAD = 0, 1, 2
SPECIAL_TOKENS = ("<s>", "</s>", "<pad>")
RECIPE = 1
"""Raised whenever the same shape would give other bytes."""


@dataclass(frozen=True, slots=True)
class TinyShape:
    """The model's shape. ``vocabulary`` counts the special tokens; ``seed`` decides the weights."""

    family: Literal["llama", "gemma3"] = "llama"
    layers: int = 4
    hidden: int = 256
    intermediate: int = 512
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 64
    vocabulary: int = 2048
    max_positions: int = 40_000
    dtype: Literal["float32", "bfloat16"] = "float32"
    seed: int = 0
    sliding_window: int = 128
    full_every: int = field(default=2)


def ensure_tiny_model(cache: Path, shape: TinyShape | None = None) -> Path:
    """The folder of the tiny model of ``shape`` below ``cache``, made if it is not there."""
    shape = shape or TinyShape()
    described = json.dumps([RECIPE, asdict(shape)], sort_keys=True)
    name = f"tiny-{shape.family}-{hashlib.sha256(described.encode()).hexdigest()[:12]}"
    target = cache / "models" / name
    if not (target / "config.json").is_file():
        with appearing(target) as scratch:
            write_tiny_model(scratch, shape)
    return target


def write_tiny_model(folder: Path, shape: TinyShape) -> None:
    """Write weights, configuration and tokenizer into the existing ``folder``."""
    from safetensors.torch import save_file

    save_file(_weights(shape), folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(folder / "config.json", _config(shape))
    _write_json(folder / "generation_config.json", {"bos_token_id": BOS, "eos_token_id": EOS})
    _write_tokenizer(folder, shape)


def _weights(shape: TinyShape) -> dict[str, Any]:
    torch: Any = importlib.import_module("torch")
    dtype = getattr(torch, shape.dtype)
    # Wide initial weights give peaked logits: different prompts get visibly different answers.
    scale = 1.28 / math.sqrt(shape.hidden)

    def draw(name: str, *size: int) -> Any:
        # Each tensor has a generator of its own, so that adding one does not change the others.
        seed = zlib.crc32(f"{shape.seed}:{name}".encode())
        generator = torch.Generator().manual_seed(seed)
        return (torch.randn(*size, generator=generator) * scale).to(dtype)

    gemma = shape.family == "gemma3"

    def norm(size: int) -> Any:
        # A neutral norm: Gemma's add one to their weight, Llama's do not.
        return torch.full((size,), 0.0 if gemma else 1.0, dtype=dtype)

    weights: dict[str, Any] = {}

    def matrix(name: str, *size: int) -> None:
        weights[name] = draw(name, *size)

    matrix("model.embed_tokens.weight", shape.vocabulary, shape.hidden)
    if not gemma:
        matrix("lm_head.weight", shape.vocabulary, shape.hidden)
    weights["model.norm.weight"] = norm(shape.hidden)
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
        matrix(f"{prefix}.self_attn.q_proj.weight", queries, shape.hidden)
        matrix(f"{prefix}.self_attn.k_proj.weight", keys, shape.hidden)
        matrix(f"{prefix}.self_attn.v_proj.weight", keys, shape.hidden)
        matrix(f"{prefix}.self_attn.o_proj.weight", shape.hidden, queries)
        matrix(f"{prefix}.mlp.gate_proj.weight", shape.intermediate, shape.hidden)
        matrix(f"{prefix}.mlp.up_proj.weight", shape.intermediate, shape.hidden)
        matrix(f"{prefix}.mlp.down_proj.weight", shape.hidden, shape.intermediate)
        norms = ["input_layernorm", "post_attention_layernorm"]
        if gemma:
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
            weights[f"{prefix}.self_attn.q_norm.weight"] = norm(shape.head_size)
            weights[f"{prefix}.self_attn.k_norm.weight"] = norm(shape.head_size)
        for name in norms:
            weights[f"{prefix}.{name}.weight"] = norm(shape.hidden)
    return weights


def _config(shape: TinyShape) -> dict[str, Any]:
    config: dict[str, Any] = {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "max_position_embeddings": shape.max_positions,
        "rms_norm_eps": 1e-6,
        "dtype": shape.dtype,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "attention_bias": False,
        "attention_dropout": 0.0,
    }
    if shape.family == "llama":
        return config | {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
            "tie_word_embeddings": False,
        }
    return config | {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": shape.head_size,
        "sliding_window": shape.sliding_window,
        "layer_types": [
            "full_attention" if (layer + 1) % shape.full_every == 0 else "sliding_attention"
            for layer in range(shape.layers)
        ],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
        "tie_word_embeddings": True,
    }


def _write_tokenizer(folder: Path, shape: TinyShape) -> None:
    from pydoc_data.topics import topics

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=shape.vocabulary,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((topics[name] for name in sorted(topics)), trainer)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIAL_TOKENS[BOS],
            "eos_token": SPECIAL_TOKENS[EOS],
            "pad_token": SPECIAL_TOKENS[PAD],
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
