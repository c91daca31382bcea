"""A fine-tune that nothing had to compute, and its signed record."""

from __future__ import annotations

import json
import time
from pathlib import Path

from kvrun.audit.record import format_time
from kvrun.config.layout import DataLayout
from kvrun.finetune.evaluation import (
    EVALUATION_NAME,
    STATEMENT_NAME,
    BaseModel,
    Evaluation,
    EvaluationData,
    Machine,
    encode_evaluation,
    sign_folder,
)
from kvrun.finetune.scoring import Score
from kvrun.finetune.store import FineTunes
from kvrun.keys.signing import KeyPurpose, SigningRing

HOSTILE = '"><script>alert(1)</script>'


def evaluated(layout: DataLayout, name: str) -> Path:
    """A fine-tune in the control plane's store whose files are small."""
    store = FineTunes(layout.finetunes)
    folder = store.folder(name)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"kvrun_finetune": "ab" * 12}))
    (folder / "model.safetensors").write_bytes(b"weights")
    plain = Score(loss=2.5, exact_matches=1, examples=8, answer_tokens=40)
    tuned = Score(loss=0.75, exact_matches=7, examples=8, answer_tokens=40)
    evaluation = Evaluation(
        id="ab" * 12,
        name=name,
        evaluated_at=format_time(time.time()),
        seed=7,
        base=BaseModel(model=HOSTILE, digest="cd" * 32),
        adapter_sha256="ef" * 32,
        origin="imported",
        training=None,
        plan=None,
        evaluation=EvaluationData(
            sha256="12" * 32, size_bytes=9, examples=8, split="given", overlap=None
        ),
        base_score=plain,
        tuned_score=tuned,
        machine=Machine(system="Linux", processor="p", device="cpu", threads=1, versions={}),
    )
    (folder / EVALUATION_NAME).write_bytes(encode_evaluation(evaluation))
    ring = SigningRing(layout.signing_keys, now=time.time)
    signed = sign_folder(
        folder,
        evaluation,
        ring.load_or_create(KeyPurpose.EVIDENCE),
        issued_at=format_time(time.time()),
        version="0.0.0",
    )
    (folder / STATEMENT_NAME).write_bytes(signed)
    store.keep(folder, evaluation)
    return folder
