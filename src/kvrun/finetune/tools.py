"""The libraries of a job, imported when one runs: everything else works without them."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
from dataclasses import dataclass
from typing import Any

from kvrun.finetune.errors import ToolsMissingError

_NEEDED = ("torch", "transformers", "peft", "safetensors")


@dataclass(frozen=True, slots=True)
class Tools:
    """torch, transformers and peft; ``device`` is where they compute: ``cuda`` or ``cpu``."""

    torch: Any
    transformers: Any
    peft: Any
    device: str

    @property
    def versions(self) -> dict[str, str]:
        """What computed, by distribution."""
        return {name: importlib.metadata.version(name) for name in _NEEDED}


def require_tools() -> None:
    """Raise ToolsMissingError that names what to install; nothing is imported."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ToolsMissingError(
            f"a fine-tune needs {', '.join(missing)}, which is not installed",
            hint='pip install "kvrun[finetune]"',
        )


def load_tools() -> Tools:
    """Import them. Raises ToolsMissingError that names what to install."""
    require_tools()
    # The job takes weights from this machine and sends nothing anywhere.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    torch = importlib.import_module("torch")
    transformers = importlib.import_module("transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Tools(torch, transformers, importlib.import_module("peft"), device)


def load_model(tools: Tools, folder: str) -> Any:
    """The causal language model in a folder, in its own number format, on the device."""
    model = tools.transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", local_files_only=True, trust_remote_code=False, use_safetensors=True
    )
    return model.to(tools.device)


def load_tokenizer(tools: Tools, folder: str) -> Any:
    """The tokenizer in a folder."""
    return tools.transformers.AutoTokenizer.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False
    )
