"""Corpora under the names of the paper's, and settings with which a row of its tables trains in a second."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from qknorm.paper import Wish, choose_targets
from qknorm.paper.summary import read_summary
from qknorm.progress import Progress
from support.tiny import THEIRS, WORDS

TINY = (
    "model.d_model=32",
    "model.d_ff=32",
    "model.heads=2",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "subwords.operations=100",
    "model.dropout=0.1",
    "model.attention_dropout=0.1",
    "model.ff_dropout=0.1",
    "training.average=none",
    "training.batch_tokens=80",
    "training.epoch_batches=18",
    "training.max_steps=36",
    "training.learning_rate=0.015",
    "training.warmup_steps=2",
    "decoding.beam=2",
    "decoding.max_extra=4",
)


def write_paper_corpus(data: Path, name: str, seed: int = 0) -> Path:
    """A made-up corpus in the place of a named one, such as iwslt15-en-vi: a few sentences over and over.

    A model that has learned little more than which are frequent has some BLEU, and each its own.
    """
    *_, source, target = name.split("-")
    folder = data / name
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    known = [rng.permutation(len(WORDS))[:6] for _ in range(6)]
    for split, count in (("train", 60), ("dev", 8), ("test", 12)):
        drawn = [known[i] for i in rng.integers(0, len(known), count)]
        for code, words, step in ((source, WORDS, 1), (target, THEIRS, -1)):
            lines = [" ".join(words[i] for i in sentence[::step]) for sentence in drawn]
            (folder / f"{split}.{code}").write_text("".join(f"{line}\n" for line in lines))
    return folder


def wish(home: Path, target: str, pairs: Iterable[str] = (), **more: object) -> Wish:
    """A wish for tiny models, everything of it under one folder."""
    folders = {"data": home / "data", "runs": home / "runs", "results": home / "results"}
    asked = {"kind": "fast", "overrides": TINY, "device": "cpu", "progress": Progress(quiet=True)}
    named = list(pairs)
    return Wish(targets=choose_targets(target, named), pairs=named, **{**folders, **asked, **more})  # type: ignore[arg-type]


def rows_of(home: Path, target: str, pair: str = "en-vi") -> list[Any]:
    """The rows of a target's page, as its JSON has them."""
    summary = read_summary(home / "results" / f"{target}.json")
    return [row for group in summary["groups"] for row in group["rows"] if row["pair"] == pair]
