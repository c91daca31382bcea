"""``[engine]``: the engine process that kvrun starts beside the daemon."""

from pathlib import Path
from typing import Literal

from kvrun.config.values import ByteSize, Section, setting


class EngineSection(Section):
    """The embedded engine and the knobs of its own that kvrun passes on."""

    kind: Literal["vllm", "llama.cpp", "sglang"] = setting(
        "vllm", 'Engine to start: "vllm", "llama.cpp" or "sglang".'
    )
    llama_server: Path | None = setting(
        None, "A stock llama-server to run as llama.cpp; unset: the package xllamacpp."
    )
    transport: Literal["unix", "tcp"] = setting(
        "unix", "How the gateway reaches the engine: a Unix socket in data_dir, or loopback TCP."
    )
    port: int = setting(8100, "Loopback port of the engine when transport is tcp.", ge=1, le=65_535)
    extra_args: tuple[str, ...] = setting(
        (), "Further arguments of the engine's own command line; governed flags are refused."
    )
    env: dict[str, str] = setting(
        {}, "Further environment variables of the engine; governed ones are refused."
    )
    block_size: int | None = setting(
        None, "Tokens a KV block; unset: the engine's default.", ge=1, le=4096
    )
    kv_cache_bytes: ByteSize | None = setting(
        None,
        "Engine memory for KV; unset: room for two longest requests on a CPU, the engine's own "
        "share on a GPU.",
    )
    kv_cache_dtype: str = setting("auto", "Number format of the KV cache (auto, fp8, ...).")
    max_num_seqs: int | None = setting(
        None, "Requests the engine runs at once; unset: the engine's default.", ge=1, le=65_536
    )
    tensor_parallel_size: int = setting(1, "Workers that share each layer.", ge=1, le=1024)
    enforce_eager: bool = setting(False, "Start without compiling: quicker start, slower answers.")
    omp_threads_bind: str | None = setting(
        None,
        'Cores of the CPU engine, as "0-7" or "0-3|4-7" for two workers; unset: every core that '
        "kvrun may use.",
        pattern=r"^[0-9,|-]+$",
    )
    startup_timeout_s: int = setting(
        900, "Longest wait for the engine to become ready (seconds).", ge=1, le=86_400
    )
