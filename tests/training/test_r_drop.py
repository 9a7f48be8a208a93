"""R-Drop: two passes with different dropout whose predictions are drawn to each other."""

from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from qknorm.config import TrainingSettings
from qknorm.data import Batches
from qknorm.data.sentences import EncodedPairs, Sentences
from qknorm.ids import PAD
from qknorm.model import ModelSettings, Transformer
from qknorm.progress import Progress
from qknorm.run import Run
from qknorm.training import train
from qknorm.training.averaging import Averaging
from qknorm.training.captured import CapturedStep
from qknorm.training.inputs import Room, padded_inputs
from qknorm.training.loss import loss_over, written_out_loss
from qknorm.training.step import Step
from support.tiny import tiny_recipe, write_corpus

CPU = torch.device("cpu")
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0, "ff_dropout": 0.0, "word_dropout": 0.0}


def some_batches(budget=96):
    rng = np.random.default_rng(3)
    sides = [[rng.integers(4, 50, n).tolist() for n in rng.integers(1, 14, 60)] for _ in "st"]
    return Batches(EncodedPairs(Sentences.of(sides[0]), Sentences.of(sides[1])), budget, 1)


def some_hidden(rows=13, width=8, subwords=21):
    torch.manual_seed(0)
    h = torch.randn(2 * rows, width, requires_grad=True)
    table, bias = torch.randn(subwords, width, requires_grad=True), torch.randn(subwords, requires_grad=True)
    return h, table, bias, torch.randint(0, subwords, (rows,)), torch.rand(rows) < 0.7


def test_the_formula():
    """Half of Wu et al.'s: both passes' cross-entropy, and α/2 times both divergences."""
    h, table, bias, wanted, real = some_hidden()
    logits = F.linear(h, table, bias).detach().double().numpy()
    p, q = np.split(np.exp(logits) / np.exp(logits).sum(1, keepdims=True), 2)
    right = np.arange(len(wanted)), wanted.numpy()
    smooth = [-0.9 * np.log(x[right]) - 0.1 * np.log(x).mean(1) for x in (p, q)]
    apart = (p * np.log(p / q)).sum(1) + (q * np.log(q / p)).sum(1)
    expected = (sum(smooth) + 3.0 / 2 * apart)[real.numpy()].sum() / 2
    loss, nll = loss_over(h, table, bias, wanted, 0.1, real, 3.0)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert nll.item() == pytest.approx(-np.log([p[right], q[right]])[:, real.numpy()].sum() / 2, rel=1e-5)


@pytest.mark.parametrize("rows", [13, 700])  # more than one round of them
@pytest.mark.parametrize("has_bias", [True, False])
def test_gradients_on_the_spot_are_those_of_the_whole(rows, has_bias):
    h, table, bias, wanted, real = some_hidden(rows)
    wanted = wanted.where(real, -1)  # no subword of the target side, where it does not count
    bias = bias if has_bias else None
    inputs = [x for x in (h, table, bias) if x is not None]
    loss, _ = loss_over(h, table, bias, wanted, 0.1, real, 5.0)
    whole, _ = written_out_loss(h, table, bias, wanted, 0.1, real, 5.0)
    torch.testing.assert_close(loss, whole)
    for a, b in zip(
        torch.autograd.grad(loss * 0.2, inputs), torch.autograd.grad(whole * 0.2, inputs), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_buffers_hold_two_copies():
    batches = some_batches()
    room = Room.of(batches.corpus, batches.budget, copies=2)
    for number in range(len(batches)):
        batch = batches.batch(number)
        flat = np.full(room.size, -7, np.int32)
        room.pack(batch, flat)
        inputs = room.unpack(torch.from_numpy(flat))
        assert len(inputs.source) == len(inputs.given) == 2 * len(inputs.wanted) == 2 * room.rows
        for text, bounds, wanted in (
            (inputs.source, inputs.source_packing.cu_seqlens, batch.source),
            (inputs.given, inputs.target_packing.cu_seqlens, batch.target_in),
        ):
            lengths = ((wanted if text is inputs.source else batch.target_out) != PAD).sum(1)
            found = [text[a:b].tolist() for a, b in pairwise(bounds)]
            sentences = [row[:n].tolist() for row, n in zip(wanted, lengths, strict=True)]
            B = len(sentences)
            assert found[:B] == sentences and found[B + 1 : 2 * B + 1] == sentences
            assert set(found[B]) <= {PAD} and bounds[B + 1] == room.rows
            assert all(rest == [] for rest in found[2 * B + 1 :])
        assert inputs.wanted.tolist().count(PAD) == room.rows - batch.target_tokens


def a_step(kind, settings, **model):
    torch.manual_seed(0)
    shape = {"d_model": 32, "d_ff": 64, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "length": 20}
    mask = torch.arange(60) < 50
    built = Transformer(60, ModelSettings(**(shape | model)), mask)
    averaging, batches = Averaging(settings, built), some_batches()
    if kind == "plain":
        return Step(built, settings, CPU, averaging), batches
    room = Room.of(batches.corpus, batches.budget, copies=2 if settings.r_drop else 1)
    step = CapturedStep(built, settings, CPU, averaging, None, room, pytest.fail, kind == "compiled")
    return step, batches


def losses(kind, settings, **model):
    step, batches = a_step(kind, settings, **model)
    step.prepare(batches.largest())
    for number in range(1, 6):
        step.update([batches.batch(number)], 1e-3, number)
    return [(o.loss / o.tokens, o.nll / o.tokens) for o in step.outcomes(wait=True)]


@pytest.mark.parametrize("kind", ["plain", "flat", "compiled"])
def test_without_dropout_two_passes_are_one(kind):
    twice = losses(kind, TrainingSettings(r_drop=5.0), **NO_DROPOUT)
    once = losses("plain", TrainingSettings(), **NO_DROPOUT)
    assert np.allclose(twice, once, rtol=1e-4)


def test_dropout_makes_the_passes_differ():
    step, batches = a_step("plain", TrainingSettings(r_drop=5.0))
    batch = batches.batch(0)
    inputs = padded_inputs(batch, CPU, 2)
    memory, padding = step.model.encode(inputs.source)
    first, second = step.model.decode(inputs.given, memory, padding).chunk(2)
    assert not torch.allclose(first, second)
    both, _ = step.loss(inputs)
    torch.manual_seed(5)
    step.settings = TrainingSettings(r_drop=5.0)
    apart, _ = step.loss(inputs)
    torch.manual_seed(5)
    step.settings = TrainingSettings(r_drop=1e-9)
    alone, _ = step.loss(inputs)
    assert apart.item() > alone.item() * 1.01 and both.isfinite()


def test_a_whole_run(tmp_path):
    """It trains, validates and keeps its setting; loss and perplexity stay per target subword."""
    corpus = write_corpus(tmp_path / "corpus", train=60)

    def first_epoch(folder, *changes):
        recipe = tiny_recipe(corpus, "training.max_epochs=1", *changes)
        done = train(recipe, folder, device="cpu", progress=Progress(quiet=True), cache=tmp_path / "cache")
        return done.run.history()[0]

    once, twice = first_epoch(tmp_path / "once"), first_epoch(tmp_path / "twice", "training.r_drop=1.0")
    assert twice["train_loss"] == pytest.approx(once["train_loss"], rel=0.1)
    assert twice["train_perplexity"] == pytest.approx(once["train_perplexity"], rel=0.2)
    assert Run.open(tmp_path / "twice").recipe().training.r_drop == 1.0
