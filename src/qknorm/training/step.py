"""One update: forward, backward, clip, optimiser. The plain form, on any device."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qknorm.config import TrainingSettings
from qknorm.data import Batch
from qknorm.ids import PAD
from qknorm.model import Transformer
from qknorm.nn.packed_embedding import output_rows
from qknorm.training.ademamix import SLOW, AdEMAMix
from qknorm.training.averaging import Averaging
from qknorm.training.inputs import Inputs, padded_inputs
from qknorm.training.loss import Allowed, can_fuse_loss, loss_over, place_of
from qknorm.training.loss_rows import product_dtype
from qknorm.training.muon import Muon, matrices_of
from qknorm.training.schedule import slow_at
from qknorm.workers import Workers

OPTIMIZERS: dict[str, type[torch.optim.Adam]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "muon": Muon,
}
ADAM_SLOTS, MUON_SLOTS = ("exp_avg", "exp_avg_sq"), ("momentum_buffer",)
MIX_SLOTS = *ADAM_SLOTS, SLOW
"""What optimisers keep of a parameter, in its shape; Adam counts its steps besides."""


class Outcome(NamedTuple):
    """What an update did."""

    step: int
    """The update's number."""
    rate: float
    tokens: int
    """Target subwords it learned from, in all processes."""
    loss: float
    """Summed over those."""
    nll: float
    gradient_norm: float
    finite: bool
    """Whether loss and gradient were finite, and so the weights updated."""


class Step:
    """The model, its optimiser, and how they take batches.

    ``update`` may return before the update is done; ``outcomes`` gives what is known of those since the
    last call, and all of them when told to wait. Here each is done, and known, at once.
    """

    rates_on_device = False
    """Whether the optimiser reads its learning rate from the device."""

    def __init__(
        self,
        model: Transformer,
        settings: TrainingSettings,
        device: torch.device,
        averaging: Averaging,
        workers: Workers | None = None,
        source_subwords: Tensor | None = None,
    ) -> None:
        """``source_subwords``, (V,), are those of the source side, for batches that go backward."""
        self.model = model
        self.settings = settings
        self.device = device
        self.averaging = averaging
        self.workers = Workers(device) if workers is None else workers
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = make_optimizer(model, settings, device, self.rates_on_device)
        self.half = uses_bfloat16(settings.precision, device)
        self.allowed = [
            None if mask is None else Allowed.of(mask.to(device))
            for mask in (model.target_subwords, source_subwords)
        ]
        """What is predicted forward, and what backward."""
        self._done: list[Outcome] = []

    def prepare(self, largest: Batch) -> None:
        """Forward and backward of the largest batch: memory runs out now or never. Nothing changes."""
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            self.model.train()
            for way in self.ways:
                loss, _ = self.loss(self.inputs(largest._replace(backward=way)))
                torch.autograd.backward(loss)
        self.optimizer.zero_grad(set_to_none=True)

    def update(self, batches: Sequence[Batch], rate: float, step: int) -> None:
        """Learn from one or several batches together (gradient accumulation), at this learning rate.

        With several processes, from the batches of all of them together; some may have none.
        """
        self.model.train()
        tokens = sum(batch.target_tokens for batch in batches)
        loss = nll = 0.0
        for batch in batches:
            batch_loss, batch_nll = self.loss(self.inputs(batch))
            torch.autograd.backward(batch_loss / tokens)
            loss += batch_loss.item()
            nll += batch_nll.item()
        loss, nll, joined = self.workers.total(loss, nll, tokens)
        if self.workers.size > 1:
            for parameter in self.parameters:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            gradients = [p.grad for p in self.parameters if p.grad is not None]
            self.workers.mean_gradients(gradients, tokens / joined)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.settings.clip or math.inf).item()
        finite = math.isfinite(loss) and math.isfinite(norm)
        if finite:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
                if "slow" in group:
                    group["slow"] = slow_at(step, self.settings)
            self.optimizer.step()
            self.averaging.after_update(step)
        self.optimizer.zero_grad(set_to_none=True)
        self._done.append(Outcome(step, rate, int(joined), loss, nll, norm, finite))

    @property
    def ways(self) -> tuple[bool, ...]:
        """Whether batches go backward: the kinds there are."""
        return (False, True) if self.settings.backward > 0 else (False,)

    def outcomes(self, wait: bool = False) -> list[Outcome]:
        """What came of updates since the last call, in their order."""
        done, self._done = self._done, []
        return done

    def busy(self) -> bool:
        """Whether the device has work left, so that nobody waits for data."""
        return False

    def inputs(self, batch: Batch) -> Inputs:
        return padded_inputs(batch, self.device, self.settings.passes)

    def loss(self, inputs: Inputs, model: Transformer | None = None) -> tuple[Tensor, Tensor]:
        """Summed smoothed loss and negative log-likelihood of a batch, by the model or one in its place."""
        model = self.model if model is None else model
        source, given, wanted, source_packing, target_packing, backward = inputs
        languages = (1, 0) if backward else (0, 1)
        with self.precision():
            memory, padding = model.encode(source, source_packing, languages[0])
            hidden = model.decode(given, memory, padding, target_packing, source_packing, languages[1])
            real: Tensor | None = wanted != PAD
            if target_packing is None:  # leave padding out, which flat buffers have next to none of
                hidden = hidden.view(self.settings.passes, *wanted.shape, -1)[:, real].flatten(0, 1)
                wanted, real = wanted[real], None
            return self.head(hidden, wanted, real, backward)

    def head(
        self, hidden: Tensor, wanted: Tensor, real: Tensor | None, backward: bool = False
    ) -> tuple[Tensor, Tensor]:
        """The loss, given the decoder's last hidden states."""
        wanted = place_of(wanted, self.allowed[backward])
        smoothing, agreement = self.settings.label_smoothing, self.settings.r_drop
        dtype = product_dtype(hidden) if can_fuse_loss(hidden) else self.model.embedding.weight.dtype
        return loss_over(hidden, *self.output(dtype, backward), wanted, smoothing, real, agreement)

    def output(self, dtype: torch.dtype, backward: bool = False) -> tuple[Tensor, Tensor | None]:
        """The output projection's rows, in ``dtype``, and biases, of the subwords the target side has.

        The others are left out rather than masked, and so cost nothing.
        """
        embedding, allowed = self.model.embedding, self.allowed[backward]
        ids = None if allowed is None else allowed.ids
        bias: Tensor | None = embedding.bias
        if bias is not None and ids is not None:
            bias = bias.index_select(0, ids)
        return output_rows(embedding.weight, ids, embedding.unit, dtype), bias

    def precision(self) -> contextlib.AbstractContextManager[object]:
        return torch.autocast(self.device.type, torch.bfloat16) if self.half else contextlib.nullcontext()

    def tensors(self) -> dict[str, Tensor]:
        """The optimiser's state, by name."""
        kept = {}
        for name, parameter in self.model.named_parameters():
            for slot, value in self.optimizer.state.get(parameter, {}).items():
                kept[f"optimizer.{slot}.{name}"] = value
        return kept

    def restore(self, tensors: dict[str, Tensor]) -> None:
        for name, parameter in self.model.named_parameters():
            slots = {}
            for key in ("step", *MIX_SLOTS, *MUON_SLOTS):
                found = tensors.get(f"optimizer.{key}.{name}")
                if found is not None:
                    on = parameter.device if key != "step" or self.device.type == "cuda" else "cpu"
                    slots[key] = found.to(on)
            if slots:
                self.optimizer.state[parameter] = slots


def make_optimizer(
    model: Transformer, settings: TrainingSettings, device: torch.device, rates_on_device: bool = False
) -> torch.optim.Optimizer:
    """By name, fused where it can be; matrices decay, the rest (biases, norms, g) does not."""
    matrices, others = (
        [p for p in model.parameters() if (p.dim() > 1) == is_matrix] for is_matrix in (True, False)
    )
    groups: list[dict[str, Any]] = [{"params": others, "weight_decay": 0.0}]
    if settings.optimizer == "muon":
        turned, parts = matrices_of(model)
        groups.append({"params": turned, "parts": parts, "momentum": settings.momentum})
        matrices = [p for p in matrices if all(p is not q for q in turned)]
    groups.append({"params": matrices})
    for group in groups:
        group["lr"] = torch.zeros((), device=device) if rates_on_device else 0.0
    usual: dict[str, Any] = {
        "betas": (settings.beta1, settings.beta2),
        "eps": settings.epsilon,
        "weight_decay": settings.weight_decay,
    }
    if settings.optimizer == "ademamix":
        slow = torch.zeros(2, device=device) if rates_on_device else (0.0, 0.0)
        return AdEMAMix(groups, slow=slow, **usual)
    capturable = rates_on_device and device.type == "cuda"
    return OPTIMIZERS[settings.optimizer](groups, fused=True, capturable=capturable, **usual)


def empty_slots(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Give every parameter that has none the state it has before the first update."""
    for group in optimizer.param_groups:
        names = MUON_SLOTS if "parts" in group else MIX_SLOTS if "slow" in group else ADAM_SLOTS
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            if not state:
                state |= {name: torch.zeros_like(parameter) for name in names}
                if "parts" not in group:
                    state["step"] = torch.zeros((), device=device)


def uses_bfloat16(precision: str, device: torch.device) -> bool:
    if precision == "auto":
        return device.type == "cuda" and torch.cuda.is_bf16_supported()
    return precision == "bfloat16"
