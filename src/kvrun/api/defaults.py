"""What a deployment that the control plane makes takes over from the control plane's own file."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel

from kvrun.config import KvrunConfig
from kvrun.deployments.spec import Value
from kvrun.keys.signing import KeyPurpose
from kvrun.launch.trust import own_keys

_SECTIONS = ("witness", "storage", "audit", "alerts", "log", "erasure", "residency")
_OWN = frozenset(
    {
        "audit.metrics_key_file",
        "audit.collector_metrics_port",
        "audit.collector_metrics_socket",
    }
)


def deployment_defaults(config: KvrunConfig) -> dict[str, Value]:
    """The settings, by dotted key, that were changed: witnesses, Storage, logs, alerts,
    erasure, residency.

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


class LivingDefaults(Mapping[str, Value]):
    """``deployment_defaults``, and whose evaluations of fine-tunes count: the keys there are now.

    A key that was made or revoked since counts from the next start of a deployment on.
    """

    def __init__(self, config: KvrunConfig) -> None:
        self._config = config
        self._fixed = deployment_defaults(config)

    def __getitem__(self, key: str) -> Value:
        return self._now()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())

    def _now(self) -> dict[str, Value]:
        keys = [
            key.private_key.public_key().public_bytes_raw().hex()
            for key in own_keys(self._config.layout)
            if key.purpose is KeyPurpose.EVIDENCE and key.revoked_at is None
        ]
        known = sorted({*keys, *self._config.deployment.evaluation_keys})
        return {**self._fixed, "deployment.evaluation_keys": known} if known else dict(self._fixed)


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
