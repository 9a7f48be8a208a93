"""Averages of the weights along the way: an exponential moving one, or of the last few epochs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from qknorm.config import TrainingSettings
from qknorm.model import Transformer
from qknorm.training.flat import joined

EMA, SNAPSHOT = "ema.", "snapshot."
MOVE = 0.01
"""About how far the running mean moves at a time, once it does not do so at every update."""


class Averaging:
    """Keeps what an average needs; ``swapped_in`` puts the average into the model for a while."""

    def __init__(self, settings: TrainingSettings, model: Transformer) -> None:
        self.kind = settings.average
        self.decay = settings.ema_decay
        self.last = settings.average_last
        self.model = model
        self._ema: dict[str, Tensor] = {}
        self._snapshots: list[dict[str, Tensor]] = []
        self._joined: tuple[Tensor, Tensor] | None = None
        if self.kind == "ema":
            self._ema = {name: p.detach().clone() for name, p in model.named_parameters()}

    def weight(self, step: int) -> float:
        """How far the running mean moves towards the weights at this update.

        Early on it moves faster, so that it forgets the initial weights. Later, where a move would be very
        small, it moves every few updates, as far as it would have in all of them: memory is read less often.
        """
        early = (1 + step) / (10 + step)
        if early < self.decay:
            return 1 - early
        every = max(1, round(MOVE / (1 - self.decay)))
        return 0.0 if step % every else 1 - self.decay**every

    @torch.no_grad()
    def after_update(self, step: int) -> None:
        """Follow an update."""
        weight = self.weight(step)
        if self.kind == "ema" and weight > 0:
            new: list[Tensor] = [p for _, p in self.model.named_parameters()]
            torch._foreach_lerp_(list(self._ema.values()), new, weight)

    def flat(self) -> Tensor | None:
        """The running mean moved into one flat buffer, laid out like the model's parameters would be."""
        return joined(list(self._ema.values())) if self.kind == "ema" else None

    def join(self) -> None:
        """Lay all weights, and their running mean, end to end in memory, so that ``follow`` is one kernel."""
        if self.kind == "ema":
            self._joined = joined(list(self._ema.values())), joined(list(self.model.parameters()))

    @torch.no_grad()
    def follow(self, weight: Tensor) -> None:
        """``after_update`` with a weight that lies on the device; ``join`` comes first."""
        if self._joined is not None:
            mean, new = self._joined
            mean.lerp_(new, weight)

    @torch.no_grad()
    def after_epoch(self) -> None:
        if self.kind == "last":
            self._snapshots.append({name: p.detach().clone() for name, p in self.model.named_parameters()})
            del self._snapshots[: -self.last]

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """The model with its averaged weights, inside the block."""
        average = self._average()
        if average is None:
            yield
            return
        parameters = dict(self.model.named_parameters())
        own = {name: p.detach().clone() for name, p in parameters.items()}
        try:
            _copy(average, parameters)
            yield
        finally:
            _copy(own, parameters)

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must keep of this."""
        kept = {f"{EMA}{name}": t for name, t in self._ema.items()}
        for i, snapshot in enumerate(self._snapshots):
            kept |= {f"{SNAPSHOT}{i}.{name}": t for name, t in snapshot.items()}
        return kept

    def restore(self, tensors: dict[str, Tensor]) -> None:
        for name, kept in self._ema.items():
            kept.copy_(tensors[EMA + name])
        names = [name for name, _ in self.model.named_parameters()]
        self._snapshots = []
        while f"{SNAPSHOT}{len(self._snapshots)}.{names[0]}" in tensors:
            i, device = len(self._snapshots), next(self.model.parameters()).device
            self._snapshots.append({n: tensors[f"{SNAPSHOT}{i}.{n}"].to(device) for n in names})

    def _average(self) -> dict[str, Tensor] | None:
        if self.kind == "ema":
            return self._ema
        if self._snapshots:
            return {
                name: torch.stack([s[name] for s in self._snapshots]).mean(0) for name in self._snapshots[0]
            }
        return None


@torch.no_grad()
def _copy(source: Mapping[str, Tensor], to: Mapping[str, Tensor]) -> None:
    for name, tensor in source.items():
        to[name].copy_(tensor)
