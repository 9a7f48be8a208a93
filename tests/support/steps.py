"""Steps over some small batches by a small model, in each of the ways there are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from qknorm.config import TrainingSettings
from qknorm.data import Batches
from qknorm.data.batches import MixedBatches
from qknorm.data.sentences import EncodedPairs, Sentences
from qknorm.ids import PAD
from qknorm.model import ModelSettings, Transformer
from qknorm.training.averaging import Averaging
from qknorm.training.captured import CapturedStep
from qknorm.training.inputs import Room
from qknorm.training.step import Outcome, Step

VOCABULARY, STEPS = 60, 50
SOURCE_SUBWORDS = (torch.arange(VOCABULARY) < VOCABULARY - 4) & (torch.arange(VOCABULARY) != PAD)
CPU = torch.device("cpu")


def some_batches(budget: int = 128, mixed: bool = False) -> Batches:
    rng = np.random.default_rng(3)
    sides = [[rng.integers(4, VOCABULARY - 10, n).tolist() for n in rng.integers(1, 24, 150)] for _ in "st"]
    corpus = EncodedPairs(Sentences.of(sides[0]), Sentences.of(sides[1]))
    return MixedBatches(corpus, budget, 1, 0) if mixed else Batches(corpus, budget, 1)


def a_model(**changed: object) -> Transformer:
    torch.manual_seed(0)
    settings = {
        "d_model": 32, "d_ff": 64, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "length": 20,
        "dropout": 0.0, "attention_dropout": 0.0, "ff_dropout": 0.0, "word_dropout": 0.0,
    }  # fmt: skip
    mask = torch.arange(VOCABULARY) < VOCABULARY - 10
    return Transformer(VOCABULARY, ModelSettings(**(settings | changed)), mask)  # type: ignore[arg-type]


def run_steps(
    kind: str, settings: TrainingSettings, device: torch.device = CPU, steps: int = STEPS, **changed: object
) -> tuple[list[Outcome], Transformer, Averaging]:
    model = a_model(**changed).to(device)
    averaging = Averaging(settings, model)
    batches = some_batches()
    said: list[str] = []
    if kind == "plain":
        step = Step(model, settings, device, averaging, source_subwords=SOURCE_SUBWORDS)
    else:
        compiles = kind != "flat"
        step = CapturedStep(
            model,
            settings,
            device,
            averaging,
            None,
            Room.of(batches.corpus, batches.budget),
            said.append,
            compiles,
            source_subwords=SOURCE_SUBWORDS,
        )
    step.prepare(batches.largest())
    found = []
    order = batches.pass_order(0)
    for number in range(1, steps + 1):
        chosen = [
            batches.batch(int(order[(number * settings.accumulate + i) % len(batches)]))
            for i in range(settings.accumulate)
        ]
        if settings.backward:  # in no order
            chosen = [batch._replace(backward=bool(batch.source_tokens % 2)) for batch in chosen]
        step.update(chosen, 1e-3 * min(1, number / 10), number)
        found += step.outcomes()
    found += step.outcomes(wait=True)
    assert said == []
    return found, model, averaging


def assert_same(a: list[Outcome], b: list[Outcome], tolerance: float) -> None:
    assert [(o.step, o.tokens, o.finite) for o in a] == [(o.step, o.tokens, o.finite) for o in b]
    for x, y in zip(a, b, strict=True):
        assert x.loss == pytest.approx(y.loss, rel=tolerance), x.step
        assert x.nll == pytest.approx(y.nll, rel=tolerance), x.step
        assert x.gradient_norm == pytest.approx(y.gradient_norm, rel=max(10 * tolerance, 1e-4)), x.step
