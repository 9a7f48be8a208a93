"""The step in flat buffers, compiled, captured: the same function as the plain one."""

from __future__ import annotations

import gc
import math
import os
import shutil
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qknorm.config import TrainingSettings
from qknorm.ids import PAD
from qknorm.nn import triton_support
from qknorm.training import captured
from qknorm.training.averaging import Averaging
from qknorm.training.captured import CapturedStep
from qknorm.training.flat import joined
from qknorm.training.inputs import Room
from qknorm.training.step import Outcome, Step
from support.steps import (
    CPU,
    SOURCE_SUBWORDS,
    STEPS,
    a_model,
    assert_same,
    run_steps,
    some_batches,
)

gpu = pytest.mark.gpu
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("mixed", [False, True])
def test_flat_buffers_hold_every_batch(mixed: bool) -> None:
    batches = some_batches(mixed=mixed)
    room = Room.of(batches.corpus, batches.budget, mixed)
    for number in range(len(batches)):
        batch = batches.batch(number)
        flat = np.full(room.size, -7, np.int32)
        room.pack(batch, flat)
        inputs = room.unpack(torch.from_numpy(flat))
        assert inputs.source_packing is not None and inputs.target_packing is not None
        bounds = inputs.source_packing.cu_seqlens.tolist(), inputs.target_packing.cu_seqlens.tolist()
        for row in range(len(batch.source)):
            start, end = bounds[0][row], bounds[0][row + 1]
            assert inputs.source[start:end].tolist() == batch.source[row][batch.source[row] != PAD].tolist()
            start, end = bounds[1][row], bounds[1][row + 1]
            assert inputs.wanted[start:end].tolist() == batch.target_out[row][: end - start].tolist()
            assert inputs.given[start:end].tolist() == batch.target_in[row][: end - start].tolist()
        assert inputs.wanted[bounds[1][-1] :].eq(PAD).all()


@pytest.mark.parametrize("fix_norm", [False, True])
def test_the_loss_is_that_of_the_models_logits(fix_norm: bool) -> None:
    """Label smoothing and negative log-likelihood over the subwords that the target side has."""
    settings, model = TrainingSettings(label_smoothing=0.1), a_model(fix_norm=fix_norm).eval()
    with torch.no_grad():
        torch.nn.init.normal_(model.embedding.bias)
    batch = some_batches().batch(2)
    step = Step(model, settings, CPU, Averaging(settings, model))
    inputs = step.inputs(batch)
    loss, nll = step.loss(inputs)
    real = inputs.wanted != PAD
    allowed = model.target_subwords
    assert allowed is not None and not allowed.all()
    logs = model(inputs.source, inputs.given)[real].masked_fill(~allowed, -torch.inf).log_softmax(1)
    expected = -logs.gather(1, inputs.wanted[real][:, None]).sum()
    smooth = -logs[:, allowed].mean(1).sum()
    torch.testing.assert_close(nll, expected)
    torch.testing.assert_close(loss, 0.9 * expected + 0.1 * smooth)


def test_backward_is_the_other_language_and_the_other_subwords() -> None:
    settings, model = TrainingSettings(label_smoothing=0.0, backward=0.5), a_model().eval()
    batch = some_batches().batch(2)._replace(backward=True)
    may = SOURCE_SUBWORDS
    step = Step(model, settings, CPU, Averaging(settings, model), source_subwords=may)
    inputs = step.inputs(batch)
    _, nll = step.loss(inputs)
    hidden = model.decode(inputs.given, *model.encode(inputs.source, language=1), language=0)
    logs = model.embedding.project(hidden).masked_fill(~may, -torch.inf).log_softmax(2)
    real = inputs.wanted != PAD
    torch.testing.assert_close(nll, -logs[real].gather(1, inputs.wanted[real][:, None]).sum())
    forward = step.loss(step.inputs(batch._replace(backward=False)))[1]
    assert abs(forward - nll) > 0.1


def test_flat_equals_plain_in_both_directions() -> None:
    settings = TrainingSettings(average="ema", ema_decay=0.9, backward=0.5)
    plain = run_steps("plain", settings)[0]
    assert_same(run_steps("flat", settings)[0], plain, 1e-5)
    one_way = run_steps("plain", TrainingSettings(average="ema", ema_decay=0.9))[0]
    apart = [abs(a.loss / b.loss - 1) for a, b in zip(one_way, plain, strict=True)]
    assert max(apart) > 1e-3, "directions make a difference"


@pytest.mark.parametrize("accumulate", [1, 3])
def test_flat_equals_plain(accumulate: int) -> None:
    """Over 50 updates, with clipping, averaging and a subword table that the target side has part of."""
    settings = TrainingSettings(average="ema", ema_decay=0.9, accumulate=accumulate, clip=0.5)
    plain, model, averaging = run_steps("plain", settings)
    flat, other, mean = run_steps("flat", settings)
    assert plain[-1].loss / plain[-1].tokens < plain[0].loss / plain[0].tokens - 0.3  # it learns something
    assert_same(flat, plain, 1e-5)
    for (name, a), b in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-4, msg=name)
    for name, kept in averaging.tensors().items():
        torch.testing.assert_close(mean.tensors()[name], kept, rtol=1e-3, atol=1e-4, msg=name)


def test_flat_equals_plain_where_heads_turn() -> None:
    settings = TrainingSettings(clip=0.5)
    plain, flat = (run_steps(kind, settings, rotary=True)[0] for kind in ("plain", "flat"))
    assert_same(flat, plain, 1e-5)
    still = run_steps("plain", settings)[0]
    assert max(abs(a.loss / b.loss - 1) for a, b in zip(still, plain, strict=True)) > 1e-3, "turning matters"


def test_flat_equals_plain_with_muon() -> None:
    """Its matrices are made orthogonal in bfloat16, which takes the last digits of gradients for 0.4%."""
    settings = TrainingSettings(optimizer="muon", average="ema", ema_decay=0.9, clip=0.5, weight_decay=0.1)
    plain, model, _ = run_steps("plain", settings)
    flat, other, _ = run_steps("flat", settings)
    assert plain[-1].loss / plain[-1].tokens < plain[0].loss / plain[0].tokens - 0.3
    assert_same(flat[:1], plain[:1], 1e-5)
    assert_same(flat, plain, 1e-3)
    for (name, a), b in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-2, atol=5e-3, msg=name)


def test_flat_equals_plain_with_a_slow_mean() -> None:
    settings = TrainingSettings(
        optimizer="ademamix", max_steps=STEPS, slow_beta=0.99, weight_decay=0.1, clip=0.5
    )
    plain, model, _ = run_steps("plain", settings)
    flat, other, _ = run_steps("flat", settings)
    assert plain[-1].loss / plain[-1].tokens < plain[0].loss / plain[0].tokens - 0.3
    assert_same(flat, plain, 1e-5)
    for (name, a), b in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-4, msg=name)


def test_half_precision_weights_are_those_of_autocast() -> None:
    """The same losses to the last bit at first, and close ones while sums in another order grow apart."""
    settings = TrainingSettings(precision="bfloat16", average="ema", accumulate=2)
    plain, flat = (run_steps(kind, settings, steps=15)[0] for kind in ("plain", "flat"))
    assert_same(flat[:1], plain[:1], 1e-3)
    assert_same(flat, plain, 1e-2)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_compiled_equals_plain() -> None:
    settings = TrainingSettings()
    assert_same(run_steps("compiled", settings)[0], run_steps("plain", settings)[0], 1e-5)


def test_preparing_changes_nothing() -> None:
    settings = TrainingSettings(average="ema")
    model = a_model(dropout=0.3)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    averaging = Averaging(settings, model)
    random = torch.get_rng_state()
    batches = some_batches()
    step = CapturedStep(
        model, settings, CPU, averaging, None, Room.of(batches.corpus, batches.budget), print, compiles=False
    )
    step.prepare(batches.largest())
    assert torch.equal(torch.get_rng_state(), random)
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name])
        assert torch.equal(averaging.tensors()[f"ema.{name}"], before[name])
    for name, value in step.tensors().items():
        assert not value.any(), name
    assert step.outcomes(wait=True) == []


def test_tables_of_positions_outlive_what_outgrows_them() -> None:
    """A captured graph reads them where they were; a search with longer sentences makes larger ones."""
    settings, model, batches = TrainingSettings(), a_model(rotary=True), some_batches()
    room = Room.of(batches.corpus, batches.budget)
    step = CapturedStep(model, settings, CPU, Averaging(settings, model), None, room, print, compiles=False)
    step.prepare(batches.largest())
    before = [weakref.ref(table) for table in model.tables()]
    model.make_room(5000)
    assert len(before) == 2 and all(table.size(0) >= 5000 for table in model.tables())
    assert all(table() is not None for table in before)
    del step
    gc.collect()
    assert all(table() is None for table in before)


def test_an_update_that_is_not_finite_changes_nothing() -> None:
    settings = TrainingSettings(average="ema")
    model = a_model()
    batches = some_batches()
    step = CapturedStep(
        model,
        settings,
        CPU,
        Averaging(settings, model),
        None,
        Room.of(batches.corpus, batches.budget),
        print,
        compiles=False,
    )
    step.prepare(batches.largest())
    step.update([batches.batch(0)], 1e-3, 1)
    state = {name: value.clone() for name, value in step.tensors().items()}
    with torch.no_grad():
        kept = model.decoder_norm.bias[0].item()
        model.decoder_norm.bias[0] = math.nan
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    step.update([batches.batch(1)], 1e-3, 2)
    with torch.no_grad():
        for name, p in model.named_parameters():
            torch.testing.assert_close(p, before[name], rtol=0, atol=0, equal_nan=True)
        model.decoder_norm.bias[0] = kept
    for name, value in step.tensors().items():
        assert torch.equal(value, state[name]), name
    step.update([batches.batch(1)], 1e-3, 3)
    assert [outcome.finite for outcome in step.outcomes(wait=True)] == [True, False, True]


def goes_on(settings: TrainingSettings, device: torch.device = CPU) -> tuple[list[str], list[Outcome]]:
    """What five updates say, and their outcomes, where something may fail."""
    model, batches, said = a_model().to(device), some_batches(), []
    room = Room.of(batches.corpus, batches.budget)
    step = CapturedStep(model, settings, device, Averaging(settings, model), None, room, said.append)
    step.prepare(batches.largest())
    order = batches.pass_order(0)
    for number in range(1, 6):
        step.update([batches.batch(int(order[number]))], 1e-3 * number / 10, number)
    return said, step.outcomes(wait=True)


def refuse(*arguments: object, **options: object) -> object:
    raise RuntimeError("out of resource: shared memory\nand more")


def test_a_compiler_that_fails_is_named_and_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = TrainingSettings()
    plain = run_steps("plain", settings, steps=5)[0]
    monkeypatch.setattr(torch, "compile", refuse)
    said, found = goes_on(settings)
    (line,) = said
    assert line.startswith("Training goes on without the compiler, which failed: RuntimeError: out of")
    assert "more" not in line
    assert_same(found, plain, 1e-5)


def test_compiled_code_is_kept_where_no_one_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"
    settings, model, batches = TrainingSettings(), a_model(), some_batches()
    room = Room.of(batches.corpus, batches.budget)
    for name in names:
        monkeypatch.setenv(name, "")  # put back at the end, whatever happens to it
        monkeypatch.delenv(name)
    for cache in (tmp_path / "first", tmp_path / "second"):
        CapturedStep(
            model, settings, CPU, Averaging(settings, model), None, room, print, compiles=False, cache=cache
        )
        assert [os.environ[name] for name in names] == [
            str(tmp_path / "first"),
            str(tmp_path / "first" / "triton"),
        ]


class Refusing:
    """In place of ``FlatUpdate``: does what that does to the optimiser, and has a kernel that fails."""

    def __init__(self, optimizer, parameters, clip, mean, rounded):  # type: ignore[no-untyped-def]
        states = [optimizer.state[p] for p in parameters]
        for state in states:
            state["step"] = states[0]["step"]
        joined(parameters)

    def follow(self) -> None: ...

    norm = refuse


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("where", ["in the update", "in the loss"])
def test_a_kernel_that_fails_is_named_and_done_without(
    monkeypatch: pytest.MonkeyPatch, accumulate: int, where: str
) -> None:
    """Triton works and a kernel does not, as on an old GPU: one line, and the same results."""
    settings = TrainingSettings(average="ema", ema_decay=0.9, accumulate=accumulate)
    plain = run_steps("plain", settings, steps=6)[0]
    init, loss = CapturedStep.__init__, CapturedStep.loss
    lines: list[str] = []

    def with_kernels(self: CapturedStep, *arguments: Any, **options: Any) -> None:
        init(self, *arguments[:6], lines.append, where == "in the loss")
        self.kernels = True

    def failing(self: CapturedStep, *arguments: Any) -> Any:
        if self.kernels and where == "in the loss":
            refuse()
        return loss(self, *arguments)

    monkeypatch.setattr(triton_support, "_FAILURES", {})
    monkeypatch.setattr(captured, "FlatUpdate", Refusing, raising=False)
    monkeypatch.setattr(CapturedStep, "__init__", with_kernels)
    monkeypatch.setattr(CapturedStep, "loss", failing)
    assert_same(run_steps("flat", settings, steps=6)[0], plain, 1e-5)
    (line,) = lines
    assert line.endswith("Triton does not work here (RuntimeError: out of resource: shared memory)")


VARIANTS: dict[str, dict[str, object]] = {
    "baseline": {"norm": "scale", "qk_norm": None},
    "g for each head": {"qk_scale_per": "head"},
    "fixed g": {"qk_scale_learnable": False, "qk_scale_init": 1.0},
    "values normalised": {"v_norm": True},
    "one head of 256": {"d_model": 256, "heads": 1},
    "norm after": {"norm_position": "post", "fix_norm": False},
    "no norm": {"norm": "none"},
    "heads that turn": {"rotary": True},
}


@gpu
@needs_gpu
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-4), ("bfloat16", 1e-2)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_of_the_paper_is_captured_alike_on_a_gpu(
    variant: str, precision: str, tolerance: float
) -> None:
    """Layers of kernels or of PyTorch's compiler, as the variant allows."""
    settings = TrainingSettings.model_validate({"precision": precision})
    device = torch.device("cuda", 0)
    plain = run_steps("plain", settings, device, 10, **VARIANTS[variant])[0]
    assert_same(run_steps("compiled", settings, device, 10, **VARIANTS[variant])[0], plain, tolerance)


@gpu
@needs_gpu
def test_where_triton_fails_one_line_says_so_and_training_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, device = TrainingSettings(precision="float32"), torch.device("cuda", 0)
    plain = run_steps("plain", settings, device, 5)[0]
    monkeypatch.setitem(triton_support._FAILURES, 0, "RuntimeError: no C compiler")
    said, found = goes_on(settings, device)
    assert len(said) == 1 and "Triton does not work here (RuntimeError: no C compiler)" in said[0]
    assert_same(found, plain, 1e-5)


@gpu
@needs_gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_where_one_kernel_fails_on_a_gpu_training_goes_on_without_any(
    monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    settings = TrainingSettings.model_validate({"precision": precision, "average": "ema"})
    device = torch.device("cuda", 0)
    plain = run_steps("plain", settings, device, 5)[0]
    monkeypatch.setattr(triton_support, "_FAILURES", {})
    monkeypatch.setattr(captured.FlatUpdate, "norm", refuse)
    said, found = goes_on(settings, device)
    assert len(said) == 1 and "Triton does not work here (RuntimeError: out of resource" in said[0]
    assert_same(found, plain, 1e-5 if precision == "float32" else 1e-2)


@gpu
@needs_gpu
@pytest.mark.parametrize(
    ("precision", "accumulate", "optimizer", "backward"),
    [
        ("float32", 1, "adam", 0.0),
        ("bfloat16", 2, "adam", 0.0),
        ("float32", 1, "adam", 0.5),
        ("bfloat16", 1, "adam", 0.5),
        ("float32", 2, "adam", 0.5),
        ("float32", 1, "ademamix", 0.0),
        ("bfloat16", 1, "ademamix", 0.0),
        ("float32", 1, "muon", 0.0),
        ("bfloat16", 1, "muon", 0.0),
    ],
)
def test_captured_equals_plain_on_a_gpu(
    precision: str, accumulate: int, optimizer: str, backward: float
) -> None:
    """Float32 to 1e-5, or 1e-3 with Muon's bfloat16 products; bfloat16, which rounds at 2⁻⁸, to 1%."""
    settings = TrainingSettings.model_validate(
        {"precision": precision, "accumulate": accumulate, "optimizer": optimizer, "average": "ema"}
        | {"max_steps": STEPS, "backward": backward}
    )
    device = torch.device("cuda", 0)
    plain = run_steps("plain", settings, device)[0]
    tolerance = 1e-2 if precision == "bfloat16" else 1e-3 if optimizer == "muon" else 1e-5
    for kind in ("flat", "compiled"):
        assert_same(run_steps(kind, settings, device)[0], plain, tolerance)


@gpu
@needs_gpu
def test_dropout_differs_between_replays() -> None:
    settings = TrainingSettings(clip=0.0)
    device = torch.device("cuda", 0)
    model = a_model(dropout=0.3, attention_dropout=0.3, ff_dropout=0.3, word_dropout=0.1).to(device)
    batches = some_batches()
    step = CapturedStep(
        model,
        settings,
        device,
        Averaging(settings, model),
        None,
        Room.of(batches.corpus, batches.budget),
        print,
    )
    step.prepare(batches.largest())
    for number in range(1, 9):
        step.update([batches.batch(0)], 0.0, number)
    losses = {outcome.loss for outcome in step.outcomes(wait=True)}
    assert len(losses) == 8
