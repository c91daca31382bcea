"""A deployment's specification as a form: read from one, and filled into one."""

from __future__ import annotations

from collections.abc import Iterable

from kvrun.config.values import format_size
from kvrun.console.forms import Form
from kvrun.deployments.model import DeploymentSpec
from kvrun.deployments.spec import ENGINES
from kvrun.errors import KvrunError

ENGINE_OPTIONS = tuple((name, {"vllm": "vLLM"}.get(name, name)) for name in ENGINES)
_FIELDS = {
    "context_window": "context_window",
    "memory_bytes": "memory",
    "disk_bytes": "disk",
    "gpu_ids": "gpus",
}
_WORDS = {"true": True, "false": False}


def read_spec(form: Form) -> DeploymentSpec | None:
    """What the form asks for; None where a field cannot be read."""
    name = form.text("name", "The name", limit=63, required=True)
    model = form.text("model", "The model", limit=4096, required=True)
    engine = form.choice("engine", "an engine", ENGINES)
    audience = form.choice("audience", "who uses it", ("internal", "product"))
    window = form.number("context_window", "The context window", 16, 10_000_000)
    memory, disk = form.size("memory", "The memory tier"), form.size("disk", "The persistent tier")
    gpus = _gpus(form)
    labels, settings = form.pairs("labels", "Labels"), form.pairs("settings", "Settings")
    if form.errors:
        return None
    usual = DeploymentSpec(name=name, model=model, multi_tenant=audience == "product")
    return DeploymentSpec(
        name=name,
        model=model,
        engine=engine,
        stateless=form.flag("stateless"),
        multi_tenant=usual.multi_tenant,
        context_window=window,
        memory_bytes=usual.memory_bytes if memory is None else memory,
        disk_bytes=usual.disk_bytes if disk is None else disk,
        labels=labels,
        gpu_ids=gpus,
        allow_shared_gpu=form.flag("allow_shared_gpu"),
        settings={key: _value(text) for key, text in settings.items()},
    )


def spec_values(spec: DeploymentSpec) -> dict[str, str]:
    """The fields of a form that asks for this."""
    return {
        "name": spec.name,
        "model": spec.model,
        "engine": spec.engine,
        "audience": "product" if spec.multi_tenant else "internal",
        "stateless": "yes" if spec.stateless else "no",
        "context_window": str(spec.context_window or ""),
        "memory": format_size(spec.memory_bytes),
        "disk": format_size(spec.disk_bytes),
        "labels": _lines(spec.labels.items()),
        "settings": _lines((key, _text(value)) for key, value in spec.settings.items()),
        "gpus": ",".join(map(str, spec.gpu_ids)),
        "allow_shared_gpu": "yes" if spec.allow_shared_gpu else "",
    }


def blame(form: Form, error: KvrunError) -> None:
    """Put what was refused beside the fields that it names, else beside the name."""
    last = ""
    for part in error.message.split("; "):
        field, colon, text = part.partition(": ")
        known = _FIELDS.get(field, field) if colon else ""
        if known in ("name", "model", "engine", "labels", "settings", *_FIELDS.values()):
            form.errors[known], last = text, known
        elif last:
            # What is allowed stands behind another semicolon.
            form.errors[last] += f"; {part}"
    if not form.errors:
        form.errors["name"] = error.diagnostics()


def _gpus(form: Form) -> tuple[int, ...]:
    parts = [part.strip() for part in form.values.get("gpus", "").split(",") if part.strip()]
    if all(part.isascii() and part.isdecimal() and len(part) < 5 for part in parts):
        return tuple(map(int, parts))
    form.errors["gpus"] = "GPU ids are whole numbers with commas between them, such as 0,1."
    return ()


def _value(text: str) -> str | int | bool:
    if text in _WORDS:
        return _WORDS[text]
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdecimal() and len(digits) < 19 else text


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _lines(pairs: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"{key}={value}" for key, value in pairs)
