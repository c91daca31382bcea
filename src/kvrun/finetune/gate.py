"""No deployment serves a fine-tune whose evaluation is missing or does not hold."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvrun.erasure.dsse import key_id
from kvrun.finetune.errors import EvaluationError
from kvrun.finetune.evaluation import (
    EVALUATION_NAME,
    STATEMENT_NAME,
    Evaluation,
    check_folder,
)
from kvrun.keys.signing import VERSION, KeyPurpose, PublicKeyRecord

MARK = "kvrun_finetune"
"""The key in a fine-tune's ``config.json`` under which its id stands: a copy is known as well."""
ADAPTER_CONFIG = "adapter_config.json"


@dataclass(frozen=True, slots=True)
class ServableFineTune:
    """A fine-tune that may be served; ``overridden`` says what does not hold and was accepted."""

    evaluation: Evaluation | None
    overridden: str = ""


def check_served(
    folder: Path, known: Sequence[PublicKeyRecord], override: str
) -> ServableFineTune | None:
    """Whether the model in ``folder`` may be served; None where it is no fine-tune of kvrun's.

    ``override`` is why an owner wants it served all the same. Raises EvaluationError.
    """
    if not is_fine_tune(folder):
        return None
    if (folder / ADAPTER_CONFIG).exists() and not (folder / "config.json").exists():
        raise EvaluationError(
            f"{folder} is an adapter, not a model",
            hint="`kvrun finetune import` merges it into its base and evaluates it.",
        )
    check = check_folder(folder, known)
    if check.holds:
        return ServableFineTune(check.evaluation)
    if override:
        return ServableFineTune(check.evaluation, check.problem)
    raise EvaluationError(
        f"{folder} may not be served: {check.problem}",
        hint="`kvrun finetune verify` shows each file. An owner may serve it all the same:"
        " deployment.unevaluated_reason says why, and the log keeps it.",
    )


def is_fine_tune(folder: Path) -> bool:
    """Whether a model folder is a fine-tune, whole or not."""
    names = (EVALUATION_NAME, STATEMENT_NAME, ADAPTER_CONFIG)
    if any((folder / name).exists() for name in names):
        return True
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and MARK in config


def keys_of(texts: Iterable[str]) -> list[PublicKeyRecord]:
    """Trusted keys as ``deployment.evaluation_keys`` names them: 64 hex digits each."""
    records = []
    for text in texts:
        raw = bytes.fromhex(text)
        encoded = base64.urlsafe_b64encode(raw).decode().rstrip("=")
        records.append(
            PublicKeyRecord(
                version=VERSION,
                key_id=key_id(raw),
                purpose=KeyPurpose.EVIDENCE.value,
                public_key=encoded,
                created_at=0,
            )
        )
    return records
