"""What a deployment that the control plane makes takes over from the control plane's own file."""

from pathlib import Path

from pydantic import BaseModel

from kvrun.config import KvrunConfig
from kvrun.deployments.spec import Value

_SECTIONS = ("witness", "storage", "audit", "alerts", "log", "erasure")
_OWN = frozenset(
    {
        "audit.metrics_key_file",
        "audit.collector_metrics_port",
        "audit.collector_metrics_socket",
    }
)


def deployment_defaults(config: KvrunConfig) -> dict[str, Value]:
    """The settings, by dotted key, that were changed: witnesses, Storage, logs, alerts,
    erasure.

    Not the key root: each deployment has one of its own, since destroying an epoch key reaches
    everything under it.
    """
    found: dict[str, Value] = {}
    for name in _SECTIONS:
        section: BaseModel = getattr(config, name)
        for field, info in type(section).model_fields.items():
            value = getattr(section, field)
            if f"{name}.{field}" not in _OWN and value != info.get_default(
                call_default_factory=True, validated_data={}
            ):
                found |= _flat(f"{name}.{field}", value)
    return found


def _flat(key: str, value: object) -> dict[str, Value]:
    match value:
        case Path():
            return {key: str(value)}
        case bool() | int() | str():
            return {key: value}
        case tuple():
            return {key: [str(item) for item in value]}
        case dict():
            return {f"{key}.{name}": str(item) for name, item in value.items()}
    return {}
