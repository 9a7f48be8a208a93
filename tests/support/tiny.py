"""A corpus and a recipe so small that training takes a second or two."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from qknorm.config import Recipe, make_recipe
from qknorm.progress import Progress
from qknorm.run import Run
from qknorm.tensors import load_tensors
from qknorm.training import train

WORDS = ["ano", "bico", "casa", "dente", "ela", "fume", "gato", "home"]
THEIRS = ["year", "peak", "house", "tooth", "she", "smoke", "cat", "man"]


def write_corpus(folder: Path, train: int = 60, dev: int = 8, test: int = 8, seed: int = 0) -> Path:
    """train/dev/test.src and .tgt: each target is its source word by word, in reverse order."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for split, count in (("train", train), ("dev", dev), ("test", test)):
        sentences = [rng.integers(0, len(WORDS), size=rng.integers(1, 7)) for _ in range(count)]
        for name, words, step in (("src", WORDS, 1), ("tgt", THEIRS, -1)):
            lines = [" ".join(words[i] for i in sentence[::step]) for sentence in sentences]
            (folder / f"{split}.{name}").write_text("".join(line + "\n" for line in lines))
    return folder


def tiny_recipe(folder: Path, *overrides: str) -> Recipe:
    """Two epochs of a model of width 16 on that corpus."""
    values = {
        "name": "tiny",
        "data": {"source": "src", "target": "tgt", "folder": str(folder)},
        "subwords": {"kind": "words", "operations": 30},
        "model": {
            "d_model": 16,
            "d_ff": 32,
            "heads": 2,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "dropout": 0.1,
            "attention_dropout": 0.1,
            "ff_dropout": 0.1,
        },
        "training": {
            "batch_tokens": 80,
            "max_epochs": 3,
            "epoch_batches": 4,
            "learning_rate": 1e-2,
            "warmup_steps": 4,
        },
        "decoding": {"beam": 2, "max_extra": 4},
    }
    return make_recipe(values, overrides)


def train_both(folder: Path) -> tuple[Run, Run]:
    """A QKNorm run of two layers and a baseline of one on the same text, in folder/qknorm and /baseline."""
    corpus = write_corpus(folder / "corpus", train=120, dev=12, test=12)
    longer = ["training.max_epochs=2", "training.epoch_batches=20", "subwords.operations=12"]
    deeper = tiny_recipe(corpus, *longer, "model.encoder_layers=2", "model.decoder_layers=2")
    baseline = tiny_recipe(corpus, *longer, "model.qk_norm=null", "model.norm=scale")
    options = {"device": "cpu", "progress": Progress(quiet=True), "cache": folder}
    return (
        train(deeper, folder / "qknorm", **options).run,
        train(baseline, folder / "baseline", **options).run,
    )


def same_weights(first: Run, second: Run, which: str = "best_file") -> bool:
    """Whether two runs have the same tensors, bit for bit, in ``best_file`` or ``last_file``."""
    a, b = (load_tensors(getattr(run, which))[0] for run in (first, second))
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
