"""A tiny model, examples that it can learn, and jobs on them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from kvrun.finetune.evaluation import Evaluation
from kvrun.finetune.finishing import Reporter, Surroundings
from kvrun.finetune.job import begin
from kvrun.finetune.store import FineTunes
from kvrun.finetune.training import Plan
from kvrun.keys.signing import KeyPurpose, PublicKeyRecord, SigningRing
from kvrun.models.tiny import TinyShape, write_tiny_model

NOW = 1_769_860_800.0
SHAPE = TinyShape(
    layers=2, hidden=64, intermediate=128, heads=2, kv_heads=1, head_size=32, vocabulary=384
)
PLAN = Plan(epochs=4, batch_size=9, learning_rate=0.03, rank=8, max_tokens=64, checkpoint_every=5)
_NUMBERS = itertools.count(1)
COLOURS = ("red", "blue", "green")
THINGS = ("car", "hat", "cup", "bag", "pen", "box", "key", "map", "tin", "jar")


@dataclass(frozen=True)
class Site:
    """A base model, data and a store of fine-tunes with a signing ring."""

    folder: Path
    base: Path
    ring: SigningRing

    @property
    def store(self) -> FineTunes:
        return FineTunes(self.folder / "finetunes")

    @property
    def around(self) -> Surroundings:
        """The world of a job: a clock that stands still, ids that count up."""
        return Surroundings(
            store=self.store,
            signer=lambda: self.ring.load_or_create(KeyPurpose.EVIDENCE),
            now=lambda: NOW,
            random_bytes=lambda size: next(_NUMBERS).to_bytes(size, "big"),
        )

    @property
    def known(self) -> list[PublicKeyRecord]:
        return self.ring.public_keys()

    def write(self, name: str, lines: list[object]) -> Path:
        path = self.folder / name
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path


def make_site(folder: Path, shape: TinyShape = SHAPE) -> Site:
    base = folder / "base"
    base.mkdir()
    write_tiny_model(base, shape)
    return Site(folder, base, SigningRing(folder / "signing", now=lambda: NOW))


def pairs() -> list[object]:
    """Thirty examples with one rule: a thing's colour is the one that was said."""
    return [
        {"prompt": f"the {thing} is {colour}. its colour:", "completion": f" {colour}"}
        for thing in THINGS
        for colour in COLOURS
    ]


def train(
    site: Site, name: str, *, plan: Plan = PLAN, stop: Callable[[], bool] = lambda: False,
    report: Reporter | None = None,
) -> Evaluation:  # fmt: skip
    """A job on the pairs, on one thread: the model is too small to share out."""
    import torch

    torch.set_num_threads(1)
    data = site.write("train.jsonl", pairs())
    around = replace(site.around, should_stop=stop, report=report or Reporter())
    return begin(around, name, str(site.base), data, None, plan)
