"""The arguments of the llama.cpp server: what kvrun sets, and what a deployment may add. Pure.

llama-server keeps a cache of prompts over all callers unless it is told not to, lends out idle
slots by how alike prompts are, and can log prompts. Everything that is not on the short list of
harmless options is refused, so that no new option of llama.cpp opens a way around the isolation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvrun.errors import KvrunError

ISOLATION: tuple[str, ...] = (
    "--cache-ram", "0",
    "--no-cache-idle-slots",
    "--slot-prompt-similarity", "0.0",
    "--no-kv-unified",
    "--cache-reuse", "0",
    "--ctx-checkpoints", "0",
    "--no-slots",
    "--no-context-shift",
    "--swa-full",
)  # fmt: skip
"""What keeps one request's tokens from another's: no cache over slots, no copies besides them, no
slot chosen by likeness, sliding windows whole in memory so that a restored state is used."""

STATES = ("--slot-save-path", "/proc/self/fd/")
"""States go through inherited descriptors, never through a path that anybody else could open."""

ALLOWED: Mapping[str, bool] = {
    "--batch-size": True,
    "--ubatch-size": True,
    "--threads": True,
    "--threads-batch": True,
    "--n-gpu-layers": True,
    "--flash-attn": True,
    "--cache-type-k": True,
    "--cache-type-v": True,
    "--chat-template": True,
    "--pooling": True,
    "--embeddings": False,
    "--no-warmup": False,
}
"""Options that ``engine.extra_args`` may hold; True where a value follows."""

_ALIASES = {
    "-b": "--batch-size",
    "-ub": "--ubatch-size",
    "-t": "--threads",
    "-tb": "--threads-batch",
    "-ngl": "--n-gpu-layers",
    "--gpu-layers": "--n-gpu-layers",
    "-fa": "--flash-attn",
    "-ctk": "--cache-type-k",
    "-ctv": "--cache-type-v",
    "--embedding": "--embeddings",
}
_GOVERNED = {
    **dict.fromkeys(
        ("--cache-ram", "-cram", "--cache-idle-slots", "--no-cache-idle-slots"),
        "it keeps prompts of all callers in one plaintext cache",
    ),
    **dict.fromkeys(
        ("--slot-prompt-similarity", "-sps", "--kv-unified", "-kvu", "--no-kv-unified", "-no-kvu"),
        "it lets one caller's slot serve another",
    ),
    **dict.fromkeys(
        ("--cache-reuse", "--cache-prompt", "--no-cache-prompt", "--ctx-checkpoints", "-ctxcp"),
        "kvrun decides what is reused, and after which check",
    ),
    **dict.fromkeys(
        ("--slots", "--no-slots", "--slot-save-path", "--props", "--metrics"),
        "it shows or writes what slots hold",
    ),
    **dict.fromkeys(
        ("--host", "--port", "--api-key", "--api-key-file", "--ssl-key-file", "--ssl-cert-file"),
        "only kvrun's own front may reach the server",
    ),
    **dict.fromkeys(
        ("--verbose", "-v", "--log-verbosity", "-lv", "--log-file", "--verbose-prompt"),
        "it writes prompts into a log",
    ),
    **dict.fromkeys(("--model", "-m"), "set deployment.model"),
    **dict.fromkeys(("--ctx-size", "-c"), "set deployment.context_window"),
    **dict.fromkeys(("--parallel", "-np"), "set engine.max_num_seqs"),
    **dict.fromkeys(("--swa-full", "--context-shift"), "a restored state would not be used"),
}


class EngineArgumentError(KvrunError):
    """An argument of llama.cpp that kvrun governs, or that it does not know."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class ServerShape:
    """What the server serves: ``slots`` requests at once of ``context_window`` tokens each."""

    model: Path
    name: str
    socket: Path
    context_window: int
    slots: int
    threads: int
    extra: tuple[str, ...] = ()


def check_arguments(arguments: Sequence[str]) -> tuple[str, ...]:
    """``engine.extra_args`` in their long form. Raises EngineArgumentError that names a bad one."""
    checked: list[str] = []
    rest = list(arguments)
    while rest:
        given, equals, value = rest.pop(0).partition("=")
        name = _ALIASES.get(given, given)
        if name not in ALLOWED:
            reason = _GOVERNED.get(name)
            raise EngineArgumentError(
                f"engine.extra_args holds {given!r}: "
                + ("it is governed by kvrun" if reason else "it is not on kvrun's list"),
                hint=reason or f"allowed are {', '.join(ALLOWED)}",
            )
        checked.append(name)
        if not ALLOWED[name]:
            if equals:
                raise EngineArgumentError(f"engine.extra_args: {name} takes no value")
            continue
        if not equals:
            if not rest:
                raise EngineArgumentError(f"engine.extra_args: {name} needs a value")
            value = rest.pop(0)
        checked.append(value)
    return tuple(checked)


def server_arguments(shape: ServerShape) -> list[str]:
    """llama-server's arguments; what isolates comes last, so that nothing before it counts."""
    return [
        "--model", str(shape.model),
        "--alias", shape.name,
        "--host", str(shape.socket),
        "--ctx-size", str(shape.context_window * shape.slots),
        "--parallel", str(shape.slots),
        "--threads", str(shape.threads),
        "--log-verbosity", "2",
        *check_arguments(shape.extra),
        *ISOLATION,
        *STATES,
    ]  # fmt: skip
