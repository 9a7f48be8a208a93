"""Where a training stands, in numbers that go into a checkpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Totals:
    """Sums over the epoch so far."""

    loss: float = 0.0
    nll: float = 0.0
    tokens: int = 0
    updates: int = 0
    gradient_norm: float = 0.0
    seconds: float = 0.0
    waiting: float = 0.0


@dataclass
class State:
    """Everything but tensors that decides how training goes on."""

    step: int = 0
    """Updates made, skipped ones included."""
    epoch: int = 1
    """The epoch under way; the first is 1."""
    batches: int = 0
    """Batches of this epoch already taken."""
    pass_number: int = 0
    """Passes over the data begun before this one."""
    position: int = 0
    """Batches of this pass already taken."""
    factor: float = 1.0
    """What the plateau schedule has come down to."""
    bleus: list[float] = field(default_factory=list)
    """What epochs were judged by: dev BLEU, or without it minus the perplexity."""
    best: float | None = None
    best_epoch: int | None = None
    skipped: int = 0
    """Updates skipped because a loss or gradient was not finite."""
    bad_in_a_row: int = 0
    elapsed: float = 0.0
    """Seconds the run has taken, from the start of the command on, in all its starts together."""
    finished: str | None = None
    """Why training ended, once it has."""
    totals: Totals = field(default_factory=Totals)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> State:
        return cls(**{**values, "totals": Totals(**values["totals"])})
