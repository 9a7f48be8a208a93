"""Corpora under the names of the paper's, and settings with which a row of its tables trains in a second."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from qknorm.paper import Wish, choose_targets
from qknorm.progress import Progress
from support.tiny import write_corpus

TINY = (
    "model.d_model=32",
    "model.d_ff=32",
    "model.heads=2",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "subwords.operations=30",
    "training.batch_tokens=80",
    "training.epoch_batches=3",
    "training.max_steps=6",
    "training.learning_rate=0.01",
    "training.warmup_steps=2",
    "decoding.beam=2",
    "decoding.max_extra=4",
)


def write_paper_corpus(data: Path, name: str, seed: int = 0) -> Path:
    """A made-up corpus in the place of a named one, such as iwslt15-en-vi."""
    folder = write_corpus(data / name, seed=seed)
    *_, source, target = name.split("-")
    for path in sorted(folder.iterdir()):
        path.rename(path.with_suffix(f".{source if path.suffix == '.src' else target}"))
    return folder


def wish(home: Path, target: str, pairs: Iterable[str] = (), **more: object) -> Wish:
    """A wish for tiny models, everything of it under one folder."""
    folders = {"data": home / "data", "runs": home / "runs", "results": home / "results"}
    asked = {"kind": "fast", "overrides": TINY, "device": "cpu", "progress": Progress(quiet=True)}
    named = list(pairs)
    return Wish(targets=choose_targets(target, named), pairs=named, **{**folders, **asked, **more})  # type: ignore[arg-type]
