"""The tab about the cache: what each tier holds, how it is protected, and why one is off. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from kvrun.config import KvrunConfig
from kvrun.instance.usage import Usage
from kvrun.models.catalogue import DEFAULT_CONTEXT_WINDOW

_STATELESS = (
    "Off: the deployment is stateless, so nothing is written anywhere and the same prompt twice "
    "reuses nothing."
)


@dataclass(frozen=True, slots=True)
class TierRow:
    """A tier: what it holds and how that is protected; numbers None where nobody can tell.

    ``off`` says why it is switched off; empty where it is on. ``hit_rate`` is the share of all
    prompt tokens that came from this tier.
    """

    tier: str
    name: str
    holds: str
    protection: str
    size_bytes: int | None
    capacity_bytes: int | None
    blocks: int | None
    hit_rate: float | None
    off: str = ""


@dataclass(frozen=True, slots=True)
class CacheView:
    """``context_window`` in tokens, None until an engine said it; timeouts in seconds."""

    tiers: tuple[TierRow, ...]
    stateless: bool
    context_window: int | None
    context_why: str
    idle_timeout_s: int
    absolute_timeout_s: int
    max_sessions_per_tenant: int


def cache_view(
    config: KvrunConfig, used: Usage | None, *, cpu: bool | None, shared: bool = False
) -> CacheView:
    """The tab for a configuration and what its daemon says (None: nobody answers).

    ``cpu``: the engine computes on a CPU, so there is no GPU memory to speak of; None where nobody
    here can tell. ``shared``: other processes use one of its GPUs, which was allowed.
    """
    window = config.deployment.context_window
    if window is None and used is not None and used.context_window:
        window = used.context_window
    tiers = [_engine(config, used, cpu, shared), _memory(config, used), _disk(config, used)]
    if config.storage.url is not None:
        tiers.append(_objects(config, used))
    return CacheView(
        tiers=tuple(tiers),
        stateless=config.deployment.stateless,
        context_window=window,
        context_why=_context_why(config),
        idle_timeout_s=config.keys.idle_timeout_s,
        absolute_timeout_s=config.keys.absolute_timeout_s,
        max_sessions_per_tenant=config.keys.max_sessions_per_tenant,
    )


def engine_memory(cpu: bool | None) -> str:
    """What the memory in which the engine computes is called."""
    return "GPU memory" if cpu is False else "Engine memory"


def _engine(config: KvrunConfig, used: Usage | None, cpu: bool | None, shared: bool) -> TierRow:
    slots = config.engine.kind == "llama.cpp"
    whose = (
        "on a GPU that other processes use too, as was allowed"
        if shared
        else "reserved for this deployment alone"
    )
    return TierRow(
        tier="gpu",
        name=engine_memory(cpu),
        holds=_ENGINE_HOLDS[cpu],
        protection=f"Plaintext in the engine's process, {whose}; "
        f"{'slots' if slots else 'pages'} are zeroed on erasure",
        size_bytes=None,
        capacity_bytes=None if slots else config.engine.kv_cache_bytes,
        blocks=None,
        hit_rate=_rate(used, used.gpu_tokens if used is not None else 0),
    )


def _memory(config: KvrunConfig, used: Usage | None) -> TierRow:
    return TierRow(
        tier="memory",
        name="Memory tier",
        holds="Nothing: a stateless deployment keeps no block after a request"
        if config.deployment.stateless
        else "Host RAM on the same box, for blocks evicted from the engine",
        protection="Sealed per tenant and session with AES-256-GCM",
        size_bytes=used.memory_bytes if used is not None else None,
        capacity_bytes=config.instance.memory_bytes,
        blocks=used.memory_blocks if used is not None else None,
        hit_rate=_rate(used, used.memory_tokens if used is not None else 0),
    )


def _disk(config: KvrunConfig, used: Usage | None) -> TierRow:
    off = ""
    if config.deployment.stateless:
        off = _STATELESS
    elif not config.instance.disk_bytes:
        off = "Off: its size is set to 0 (disk_bytes)."
    on = used if not off else None
    return TierRow(
        tier="disk",
        name="Persistent tier",
        holds="The deployment's own folder, so a restart does not start cold",
        protection="Ciphertext only, under keys only this deployment holds",
        size_bytes=on.disk_bytes if on is not None else None,
        capacity_bytes=0 if off else config.instance.disk_bytes,
        blocks=on.disk_blocks if on is not None else None,
        hit_rate=_rate(on, on.disk_tokens if on is not None else 0),
        off=off,
    )


def _objects(config: KvrunConfig, used: Usage | None) -> TierRow:
    off = ""
    if config.deployment.stateless:
        off = _STATELESS
    elif not config.object_tier:
        off = f"Off: object_tier is {config.instance.object_tier!r}."
    on = used if not off else None
    protection = "Ciphertext only, in packs whose names and indexes tell a reader nothing"
    if on is not None and not on.object_available:
        protection += ". Storage does not answer now: what it holds is recomputed meanwhile"
    return TierRow(
        tier="object",
        name="Storage",
        holds="The workspace's object store, so another machine does not start cold",
        protection=protection,
        size_bytes=on.object_bytes if on is not None else None,
        capacity_bytes=None if not off else 0,
        blocks=on.object_blocks if on is not None else None,
        hit_rate=_rate(on, on.object_tokens if on is not None else 0),
        off=off,
    )


_ENGINE_HOLDS = {
    True: "The working set, in the engine's own memory on a CPU",
    False: "The working set, on the accelerator",
    None: "The working set, in the engine's own memory: on the accelerator where it uses one",
}


def _rate(used: Usage | None, tokens: int) -> float | None:
    if used is None or not used.prompt_tokens:
        return None
    return tokens / used.prompt_tokens


def _context_why(config: KvrunConfig) -> str:
    whose = (
        "It was set for this deployment."
        if config.deployment.context_window is not None
        else f"It is the model's own, or {DEFAULT_CONTEXT_WINDOW} tokens where none is known."
    )
    return (
        "Bounded, because the scratch space for decryption is sized for the longest prompt that a "
        f"deployment will see. {whose} A longer prompt is refused with an error that names both "
        "numbers."
    )
