"""What is known about a model before it is started: its context window."""

import json
from pathlib import Path

from kvrun.models.folders import ModelError

DEFAULT_CONTEXT_WINDOW = 32_000

CONTEXT_WINDOWS = {"demo": 32_000}
"""Context windows of models that kvrun knows, by the name in ``deployment.model``."""


def context_window(model: str, configured: int | None, maximum: int | None) -> int:
    """Tokens that a prompt and its answer may have together.

    The configured value, else the catalogue's, else 32,000; never above the model's ``maximum``
    (None: not known before the engine loads it). Raises ModelError when more is configured than
    the model can do.
    """
    if configured is not None:
        if maximum is not None and configured > maximum:
            raise ModelError(
                f"deployment.context_window = {configured}, but {model} can hold {maximum} tokens",
                hint=f"set deployment.context_window to at most {maximum}, or leave it out",
            )
        return configured
    wanted = CONTEXT_WINDOWS.get(model, DEFAULT_CONTEXT_WINDOW)
    return wanted if maximum is None else min(wanted, maximum)


def model_maximum(folder: Path) -> int | None:
    """The longest sequence that the model in ``folder`` was made for, from its config.json.

    None when the folder's configuration does not say. Raises ModelError when it is no model.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(
            f"{folder} is not a model folder: it has no config.json",
            hint="deployment.model is a folder with safetensors, config.json and a tokenizer",
        ) from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    for table in (config, config.get("text_config", {})):
        value = table.get("max_position_embeddings") if isinstance(table, dict) else None
        if isinstance(value, int):
            return value
    return None


def kv_bytes_per_token(folder: Path, element_bytes: int) -> int | None:
    """Upper bound of KV bytes a token over all layers, or None where config.json does not tell."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    config = config.get("text_config", config)
    try:
        heads = config["num_attention_heads"]
        kv_heads = config.get("num_key_value_heads") or heads
        head = config.get("head_dim") or config["hidden_size"] // heads
        return int(2 * config["num_hidden_layers"] * kv_heads * head * element_bytes)
    except (KeyError, TypeError, ZeroDivisionError):
        return None
