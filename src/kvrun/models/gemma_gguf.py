"""Convert a Gemma 3 text model from GGUF to safetensors, config and tokenizer.

``python -m kvrun.models.gemma_gguf FILE.gguf FOLDER``. Needs the ``gguf`` package and torch.
The names of tensors follow the public Gemma 3 checkpoints; GGUF stores a norm's weight plus one.
"""

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvrun.models.gemma_tokenizer import SPACE, TokenTable, write_tokenizer
from kvrun.models.gguf_header import GgufFile, TensorEntry, open_gguf

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROWS_AT_ONCE = 32_768
SLIDING_PATTERN = 6
"""Every sixth layer of Gemma 3 attends to everything, the others to a sliding window."""


def convert(gguf_path: Path, folder: Path) -> None:
    """Write model.safetensors (bfloat16), config.json and the tokenizer into ``folder``."""
    gguf = open_gguf(gguf_path)
    fields = gguf.fields
    _write_weights(gguf, folder)
    config = _config(fields)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    generation = {"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"]}
    (folder / "generation_config.json").write_text(json.dumps(generation) + "\n", encoding="utf-8")
    table = TokenTable(
        # Some converters write runs of spaces as they are, all other pieces with the mark.
        pieces=[piece.replace(" ", SPACE) for piece in fields["tokenizer.ggml.tokens"]],
        kinds=fields["tokenizer.ggml.token_type"],
        bos=fields["tokenizer.ggml.bos_token_id"],
        eos=fields["tokenizer.ggml.eos_token_id"],
        unknown=fields["tokenizer.ggml.unknown_token_id"],
        padding=fields["tokenizer.ggml.padding_token_id"],
    )
    write_tokenizer(table, folder)


def checkpoint_name(name: str) -> str:
    """The checkpoint's name of a GGUF tensor; KeyError for one that Gemma 3 does not have."""
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    _, layer, kind, suffix = name.split(".")
    return f"model.layers.{layer}.{LAYER_NAMES[kind]}.{suffix}"


def _write_weights(gguf: GgufFile, folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    weights: dict[str, Any] = {}
    for tensor in gguf.tensors:
        out = torch.empty(tensor.shape, dtype=torch.bfloat16)
        shift = 1.0 if tensor.name.split(".")[-2].endswith("norm") else 0.0
        for start, part in _dequantised_rows(gguf, tensor):
            out[start : start + len(part)] = torch.from_numpy(part - shift)
        weights[checkpoint_name(tensor.name)] = out
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _dequantised_rows(gguf: GgufFile, tensor: TensorEntry) -> Iterator[tuple[int, Any]]:
    """Runs of rows as float32, a run at a time since the embedding is large."""
    import numpy as np
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize

    kind = GGMLQuantizationType(tensor.ggml_type)
    block, block_bytes = GGML_QUANT_SIZES[kind]
    row_bytes = tensor.shape[-1] // block * block_bytes
    rows = math.prod(tensor.shape[:-1])
    raw = np.frombuffer(gguf.data, np.uint8, rows * row_bytes, tensor.offset)
    matrix = raw.reshape(*tensor.shape[:-1], row_bytes)
    if matrix.ndim == 1:
        yield 0, dequantize(matrix, kind)
        return
    for start in range(0, rows, ROWS_AT_ONCE):
        yield start, dequantize(matrix[start : start + ROWS_AT_ONCE], kind)


def _config(fields: dict[str, Any]) -> dict[str, Any]:
    layers = fields["gemma3.block_count"]
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "dtype": "bfloat16",
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "hidden_size": fields["gemma3.embedding_length"],
        "intermediate_size": fields["gemma3.feed_forward_length"],
        "num_hidden_layers": layers,
        "num_attention_heads": fields["gemma3.attention.head_count"],
        "num_key_value_heads": fields["gemma3.attention.head_count_kv"],
        "head_dim": fields["gemma3.attention.key_length"],
        "query_pre_attn_scalar": fields["gemma3.attention.key_length"],
        "max_position_embeddings": fields["gemma3.context_length"],
        "rms_norm_eps": 1e-6,
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "sliding_window": fields["gemma3.attention.sliding_window"],
        "layer_types": [
            "full_attention" if (index + 1) % SLIDING_PATTERN == 0 else "sliding_attention"
            for index in range(layers)
        ],
        "rope_parameters": {
            "full_attention": {
                "rope_type": "default",
                "rope_theta": fields["gemma3.rope.freq_base"],
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
    }


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
