"""One update: forward, backward, clip, optimiser. The plain form, on any device."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from qknorm.config import TrainingSettings
from qknorm.data import Batch
from qknorm.ids import PAD
from qknorm.model import Transformer
from qknorm.training.loss import smoothed_loss


class Outcome(NamedTuple):
    """What an update did."""

    loss: float
    """Summed over target subwords."""
    nll: float
    gradient_norm: float
    finite: bool
    """Whether loss and gradient were finite, and so the weights updated."""


class Step:
    """The model, its optimiser, and how they take batches."""

    def __init__(self, model: Transformer, settings: TrainingSettings, device: torch.device) -> None:
        self.model = model
        self.settings = settings
        self.device = device
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = make_optimizer(model, settings)
        self.half = uses_bfloat16(settings.precision, device)

    def update(self, batches: Sequence[Batch], rate: float) -> Outcome:
        """Learn from one or several batches together (gradient accumulation), at this learning rate."""
        self.model.train()
        tokens = sum(batch.target_tokens for batch in batches)
        loss = nll = 0.0
        for batch in batches:
            batch_loss, batch_nll = self.loss(batch)
            torch.autograd.backward(batch_loss / tokens)
            loss += batch_loss.item()
            nll += batch_nll.item()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.settings.clip or math.inf).item()
        finite = math.isfinite(loss) and math.isfinite(norm)
        if finite:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return Outcome(loss, nll, norm, finite)

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Summed smoothed loss and negative log-likelihood of a batch."""
        source, given, wanted = (
            torch.from_numpy(x).to(self.device, non_blocking=True)
            for x in (batch.source, batch.target_in, batch.target_out)
        )
        with self.precision():
            memory, padding = self.model.encode(source)
            hidden = self.model.decode(given, memory, padding)
            real = wanted != PAD
            embedding = self.model.embedding
            return smoothed_loss(
                hidden[real],
                embedding.table(),
                embedding.bias,
                wanted[real],
                self.model.target_subwords,
                self.settings.label_smoothing,
            )

    def precision(self) -> contextlib.AbstractContextManager[object]:
        return torch.autocast(self.device.type, torch.bfloat16) if self.half else contextlib.nullcontext()

    def try_largest(self, batch: Batch) -> None:
        """Forward and backward of the largest batch: memory runs out now or never. Nothing changes."""
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            self.model.train()
            loss, _ = self.loss(batch)
            torch.autograd.backward(loss)
        self.optimizer.zero_grad(set_to_none=True)

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
            for key in ("step", "exp_avg", "exp_avg_sq"):
                found = tensors.get(f"optimizer.{key}.{name}")
                if found is not None:
                    on = parameter.device if key != "step" or self.device.type == "cuda" else "cpu"
                    slots[key] = found.to(on)
            if slots:
                self.optimizer.state[parameter] = slots


def make_optimizer(model: Transformer, settings: TrainingSettings) -> torch.optim.Optimizer:
    """Adam or AdamW, fused; matrices decay, the rest (biases, norms, g) does not."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    kind = torch.optim.AdamW if settings.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=0.0, betas=(settings.beta1, settings.beta2), eps=settings.epsilon, fused=True)


def uses_bfloat16(precision: str, device: torch.device) -> bool:
    if precision == "auto":
        return device.type == "cuda" and torch.cuda.is_bf16_supported()
    return precision == "bfloat16"
