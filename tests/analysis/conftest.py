"""What the tests of this room share: two small runs, trained in seconds."""

from __future__ import annotations

import pytest

from qknorm.progress import Progress
from qknorm.run import Run
from qknorm.training import train
from support.tiny import tiny_recipe, write_corpus


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> tuple[Run, Run]:
    """A QKNorm run of two layers and a baseline of one, on the same text; tests must not change them."""
    folder = tmp_path_factory.mktemp("analysis")
    corpus = write_corpus(folder / "corpus", train=120, dev=12, test=12)
    longer = ["training.max_epochs=3", "training.epoch_batches=16", "subwords.operations=12"]
    made = []
    for name, overrides in (
        ("qknorm", ["model.encoder_layers=2", "model.decoder_layers=2"]),
        ("baseline", ["model.qk_norm=null", "model.norm=scale"]),
    ):
        recipe = tiny_recipe(corpus, *longer, *overrides)
        made.append(
            train(recipe, folder / name, device="cpu", progress=Progress(quiet=True), cache=folder).run
        )
    return made[0], made[1]
