"""``python -m kvrun.engines.llama_cpp.server_process [--binary PATH] ARGUMENTS...``

The llama.cpp server as a child of the slot server: xllamacpp within this process, or a stock
``llama-server`` in its place. Both get llama-server's arguments and the API key from a variable.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from kvrun.process import PARENT_VARIABLE, end_with_parent, harden_process, leave_no_core

API_KEY_VARIABLE = "LLAMA_API_KEY"


def main(arguments: Sequence[str]) -> None:
    """Serve until a signal ends the process."""
    end_with_parent(os.environ.get(PARENT_VARIABLE))
    os.umask(0o077)
    if arguments[:1] == ["--binary"]:
        leave_no_core()  # a program that is executed can be dumped again
        binary = arguments[1]
        os.execv(binary, [binary, *arguments[2:]])  # noqa: S606 - the operator's own setting
    harden_process()
    # Held while the process lives: the server ends with it.
    server = _embedded(arguments, os.environ.pop(API_KEY_VARIABLE, ""))
    while server is not None:
        signal.pause()


def _embedded(arguments: Sequence[str], api_key: str) -> object:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.api_keys = [api_key] if api_key else []
    params.ui = False
    apply_arguments(params, arguments, xllamacpp)
    return xllamacpp.Server(params)


def apply_arguments(params: Any, arguments: Sequence[str], library: Any) -> None:
    """Set what llama-server's ``arguments`` mean on xllamacpp's parameters.

    Raises ValueError for one that is not known here: an argument must never be left out.
    """
    rest = list(arguments)
    while rest:
        name = rest.pop(0)
        if name in _SWITCHES:
            for attribute, value in _SWITCHES[name].items():
                setattr(params, attribute, value)
        elif name in _VALUES:
            _VALUES[name](params, rest.pop(0), library)
        else:
            raise ValueError(f"llama.cpp's argument {name!r} has no counterpart in xllamacpp")


def _set(attribute: str, kind: Callable[[str], object]) -> Callable[[Any, str, Any], None]:
    def apply(params: Any, value: str, library: Any) -> None:
        setattr(params, attribute, kind(value))

    return apply


def _model(params: Any, value: str, library: Any) -> None:
    params.model.path = value


def _host(params: Any, value: str, library: Any) -> None:
    params.hostnames = [value]


def _alias(params: Any, value: str, library: Any) -> None:
    params.model_alias = {value}


def _threads(params: Any, value: str, library: Any) -> None:
    params.cpuparams.n_threads = int(value)
    params.cpuparams_batch.n_threads = int(value)


def _threads_batch(params: Any, value: str, library: Any) -> None:
    params.cpuparams_batch.n_threads = int(value)


def _cache_type(attribute: str) -> Callable[[Any, str, Any], None]:
    def apply(params: Any, value: str, library: Any) -> None:
        kind = getattr(library.ggml_type, f"GGML_TYPE_{value.upper()}", None)
        if kind is None:
            raise ValueError(f"llama.cpp knows no KV cache type {value!r}")
        setattr(params, attribute, kind)

    return apply


def _flash(params: Any, value: str, library: Any) -> None:
    names = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}
    kinds = library.llama_flash_attn_type
    params.flash_attn_type = getattr(kinds, f"LLAMA_FLASH_ATTN_TYPE_{names[value]}")


def _pooling(params: Any, value: str, library: Any) -> None:
    kinds = library.llama_pooling_type
    params.pooling_type = getattr(kinds, f"LLAMA_POOLING_TYPE_{value.upper()}")


_SWITCHES: dict[str, dict[str, object]] = {
    "--no-cache-idle-slots": {"cache_idle_slots": False},
    "--no-kv-unified": {"kv_unified": False},
    "--no-slots": {"endpoint_slots": False},
    "--no-context-shift": {"ctx_shift": False},
    "--swa-full": {"swa_full": True},
    "--embeddings": {"embedding": True},
    "--no-warmup": {"warmup": False},
}
_VALUES: dict[str, Callable[[Any, str, Any], None]] = {
    "--model": _model,
    "--alias": _alias,
    "--host": _host,
    "--port": _set("port", int),
    "--ctx-size": _set("n_ctx", int),
    "--parallel": _set("n_parallel", int),
    "--threads": _threads,
    "--threads-batch": _threads_batch,
    "--log-verbosity": _set("verbosity", int),
    "--batch-size": _set("n_batch", int),
    "--ubatch-size": _set("n_ubatch", int),
    "--n-gpu-layers": _set("n_gpu_layers", int),
    "--flash-attn": _flash,
    "--cache-type-k": _cache_type("cache_type_k"),
    "--cache-type-v": _cache_type("cache_type_v"),
    "--chat-template": _set("chat_template", str),
    "--pooling": _pooling,
    "--cache-ram": _set("cache_ram_mib", int),
    "--slot-prompt-similarity": _set("slot_prompt_similarity", float),
    "--cache-reuse": _set("n_cache_reuse", int),
    "--ctx-checkpoints": _set("n_ctx_checkpoints", int),
    "--slot-save-path": _set("slot_save_path", str),
}

if __name__ == "__main__":
    main(sys.argv[1:])
