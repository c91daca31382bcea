"""Checking what people ask for, and writing it down as a ``kvrun.toml``. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from kvrun.config import ConfigError, KvrunConfig, parse_config
from kvrun.config.deployment import RESERVED_NAME
from kvrun.deployments.errors import SpecError
from kvrun.deployments.model import DeploymentSpec

ENGINES = ("vllm", "llama.cpp")
FREE_SETTINGS = frozenset(
    {
        "audit.collect_every_s",
        "deployment.dtype",
        "deployment.served_model_name",
        "deployment.strict",
        "deployment.unevaluated_reason",
        "engine.block_size",
        "engine.enforce_eager",
        "engine.kv_cache_bytes",
        "engine.kv_cache_dtype",
        "engine.max_num_seqs",
        "engine.startup_timeout_s",
        "engine.tensor_parallel_size",
        "gateway.max_body_bytes",
        "keys.absolute_timeout_s",
        "keys.idle_timeout_s",
        "keys.max_sessions_per_tenant",
    }
)
"""Settings that a spec may set besides its own fields."""

OVERRIDE = "deployment.unevaluated_reason"
"""The one of them that is for owners."""

DATA_FOLDER, API_KEYS_FILE, METRICS_KEY_FILE = "data", "api_keys.json", "metrics.key"
Value = str | int | bool | Sequence[str]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")
_MAX_LABELS = 32
_MAX_TEXT = 256
_MAX_GPUS = 64
_MAX_BYTES = 2**60


def check_spec(spec: DeploymentSpec, *, had_name: str | None = None) -> DeploymentSpec:
    """The spec, if it can be a deployment. Raises SpecError that names every wrong field.

    ``had_name``: the deployment's name until now, which it may keep.
    """
    problems = [
        f"{field}: {problem}"
        for field, problem in (
            ("name", "" if spec.name == had_name else _name(spec.name)),
            ("model", _model(spec.model)),
            ("engine", _engine(spec.engine)),
            ("context_window", _within(spec.context_window, 16, 10_000_000, "tokens")),
            ("memory_bytes", _within(spec.memory_bytes, 2**20, _MAX_BYTES, "bytes")),
            ("disk_bytes", _within(spec.disk_bytes, 0, _MAX_BYTES, "bytes")),
            ("labels", labels_problem(spec.labels)),
            ("gpu_ids", _gpus(spec.gpu_ids)),
            ("settings", _settings(spec.settings)),
        )
        if problem
    ]
    if problems:
        raise SpecError("; ".join(problems), hint="Nothing was made.")
    return spec


def check_name(name: str) -> None:
    """Raise SpecError for what cannot be a deployment's name."""
    if problem := _name(name):
        raise SpecError(f"name: {problem}")


def settings_of(
    spec: DeploymentSpec,
    *,
    deployment_id: str,
    workspace_id: str,
    port: int,
    defaults: Mapping[str, Value],
) -> dict[str, Value]:
    """The deployment's settings by dotted key.

    ``defaults`` are the control plane's (key root, witnesses, Storage); the spec's own and what
    the control plane must decide win over them.
    """
    settings: dict[str, Value] = dict(defaults) | dict(spec.settings)
    settings |= {
        "control.enabled": False,
        "deployment.workspace": workspace_id,
        "deployment.name": deployment_id,
        "deployment.model": spec.model,
        "deployment.stateless": spec.stateless,
        "instance.data_dir": DATA_FOLDER,
        "instance.memory_bytes": spec.memory_bytes,
        "instance.disk_bytes": spec.disk_bytes,
        "gateway.port": port,
        "gateway.multi_tenant": spec.multi_tenant,
        "gateway.api_keys_file": API_KEYS_FILE,
        "audit.metrics_key_file": METRICS_KEY_FILE,
        "engine.kind": spec.engine,
    }
    if spec.context_window is not None:
        settings["deployment.context_window"] = spec.context_window
    if spec.gpu_ids:
        # As nvidia-smi numbers them, not by speed.
        settings["engine.env.CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        settings["engine.env.CUDA_VISIBLE_DEVICES"] = ",".join(map(str, spec.gpu_ids))
    return settings


def config_text(settings: Mapping[str, Value]) -> str:
    """``kvrun.toml`` with these settings and nothing else."""
    sections: dict[str, list[str]] = {}
    for key in sorted(settings):
        section, _, name = key.rpartition(".")
        sections.setdefault(section, []).append(f"{name} = {_toml(settings[key])}")
    parts = ["# Written by the control plane, which writes it again at every start."]
    parts += [f"\n[{section}]\n" + "\n".join(sections[section]) for section in sorted(sections)]
    return "\n".join(parts) + "\n"


def checked_config(text: str, file: Path) -> KvrunConfig:
    """The configuration that ``text`` would be as ``file``. Raises SpecError."""
    try:
        return parse_config(text, {}, source=file)
    except ConfigError as error:
        message = error.message.replace(f"{file}: ", "").replace(str(file), "the deployment")
        raise SpecError(message, hint=error.hint) from None


def labels_problem(labels: Mapping[str, str]) -> str:
    """What is wrong with labels; nothing where they can be used."""
    if len(labels) > _MAX_LABELS:
        return f"{len(labels)} are too many; {_MAX_LABELS} are allowed"
    for key, value in labels.items():
        if not _LABEL.fullmatch(key):
            return f"{key[:80]!r} is no label; allowed are 1 to 63 letters, digits, . _ / -"
        if not isinstance(value, str) or len(value) > _MAX_TEXT or not value.isprintable():
            return f"the value of {key} must be at most {_MAX_TEXT} printable characters"
    return ""


def _name(name: str) -> str:
    if name == RESERVED_NAME:
        return f"{name!r} is the control plane's own name in logs; choose another"
    if _NAME.fullmatch(name):
        return ""
    return f"{name[:80]!r} must be 1 to 63 letters, digits, . _ - and begin with a letter or digit"


def _model(model: str) -> str:
    if 0 < len(model) <= 4096 and model.isprintable() and not model.startswith("-"):
        return ""
    return 'a folder, a Hugging Face id, "demo" or "tiny" is allowed'


def _engine(engine: str) -> str:
    return (
        "" if engine in ENGINES else f"{engine[:40]!r} is not known; allowed: {', '.join(ENGINES)}"
    )


def _within(value: int | None, least: int, most: int, unit: str) -> str:
    if value is None or (isinstance(value, int) and least <= value <= most):
        return ""
    return f"{value!r} must be from {least} to {most} {unit}"


def _gpus(ids: Sequence[int]) -> str:
    if len(set(ids)) != len(ids) or len(ids) > _MAX_GPUS or any(not 0 <= n < 1024 for n in ids):
        return f"{list(ids)[:8]!r} must be at most {_MAX_GPUS} different numbers from 0 on"
    return ""


def _settings(settings: Mapping[str, str | int | bool]) -> str:
    for key, value in settings.items():
        if key not in FREE_SETTINGS:
            return f"{key[:80]!r} cannot be set here; allowed: {', '.join(sorted(FREE_SETTINGS))}"
        if isinstance(value, str) and (len(value) > _MAX_TEXT or not value.isprintable()):
            return f"{key} must be at most {_MAX_TEXT} printable characters"
    return ""


def _toml(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    # Every JSON string is a basic string of TOML, but for the one character that JSON leaves.
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return "[" + ", ".join(_toml(item) for item in value) + "]"
