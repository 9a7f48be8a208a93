"""What ``packed_attention.py`` measures: attention on batches of en-vi's lengths, and the time of a call.

Axes: R rows of a buffer, H heads, D width of one head.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qknorm.nn.packed import Packing
from qknorm.nn.span_attention import span_attention
from qknorm.nn.spans import Spans, find_spans
from qknorm.nn.triton_support import HAS_TRITON

if HAS_TRITON:
    from qknorm.nn.span_ops import fused_span_attention, fused_span_attention_backward

TYPICAL = (8, 16, 24, 40, 80)
MEAN, SPREAD, LONGEST = 25.0, 0.57, 120  # of en-vi's sentences in subwords: log-normal
EPS, CALLS = 1e-12, 10
Step = Callable[[], Any]
Times = dict[str, float]  # microseconds


def lengths_of(name: str, rows: int) -> tuple[list[int], list[int]]:
    """Lengths of a batch's source and target sentences, of which each side fits into the rows."""
    if name == "fixed 32":
        return [32] * (rows // 32), [32] * (rows // 32)
    target = mixed_lengths(rows) if name == "mixed" else [typical(name)] * (rows // typical(name))
    source = [max(1, min(LONGEST, round(n * (0.8 + 0.04 * (37 * i % 11))))) for i, n in enumerate(target)]
    while sum(source) > rows:
        source[source.index(max(source))] -= 1
    return source, target


def mixed_lengths(rows: int) -> list[int]:
    """Log-normal lengths until the rows are full."""
    rng, lengths = random.Random(1), list[int]()
    while True:
        drawn = round(rng.lognormvariate(math.log(MEAN) - SPREAD**2 / 2, SPREAD))
        lengths.append(max(2, min(LONGEST, drawn)))
        if sum(lengths) > rows:
            return lengths[:-1]


def typical(name: str) -> int:
    return int(name.removeprefix("all of "))


def token_shares() -> dict[str, float]:
    """What a batch counts in the sweep: a mixed one half, others by en-vi's subwords in such sentences."""
    # Weighing each sentence by its length moves a log-normal's mean logarithm up by its variance.
    logarithm = statistics.NormalDist(math.log(MEAN) + SPREAD**2 / 2, SPREAD)
    borders = [logarithm.cdf(math.log(math.sqrt(a * b))) for a, b in itertools.pairwise(TYPICAL)]
    ends = itertools.pairwise([0.0, *borders, 1.0])
    by_length = {f"all of {n}": (high - low) / 2 for n, (low, high) in zip(TYPICAL, ends, strict=True)}
    return {"mixed": 0.5, **by_length}


@dataclass
class Case:
    """One attention on one batch: what both paths are given."""

    lengths: str
    kind: str
    q: Tensor  # (R, H, D); without kv (R, 3H, D)
    kv: Tensor | None  # (R, 2H, D)
    g: Tensor  # (1,)
    up: Tensor  # (R, H, D) gradient of the result
    seed: Tensor | None
    dropout_p: float
    packing: Packing
    key_packing: Packing | None
    spans: Spans

    @classmethod
    def of(cls, lengths: str, kind: str, options: argparse.Namespace) -> Case:
        R, H, D, device = options.rows, options.heads, options.width, options.device
        torch.manual_seed(0)

        def heads(count: int) -> Tensor:
            return torch.randn(R, count, D, device=device, dtype=options.dtype)

        source, target = (
            Packing.of(side, places=R // min(TYPICAL), max_length=LONGEST, device=device)
            for side in lengths_of(lengths, R)
        )
        own = source if kind == "self" else target
        other = source if kind == "cross" else None
        q, kv = (heads(3 * H), None) if other is None else (heads(H), heads(2 * H).requires_grad_())
        return cls(
            lengths,
            kind,
            q.requires_grad_(),
            kv,
            torch.full((1,), 12.0, device=device).requires_grad_(),
            heads(H),
            torch.ones(1, dtype=torch.int64, device=device) if options.dropout else None,
            options.dropout,
            own,
            other,
            find_spans(own, R, other, R, kind == "causal"),
        )

    @property
    def name(self) -> str:
        return f"{self.lengths}, {self.kind}"

    def spanned(self) -> Tensor:
        return span_attention(self.q, self.kv, self.g, self.spans, self.dropout_p, eps=EPS)

    def gradients(self, out: Tensor) -> tuple[Tensor, ...]:
        wanted = [x for x in (self.q, self.kv, self.g) if x is not None]
        return torch.autograd.grad(out, wanted, self.up)

    def kernel_steps(self) -> dict[str, Step]:
        """The operations alone, forward and backward, without autograd."""
        settings = (self.q, self.kv, self.g, *self.spans, self.seed, self.dropout_p, 1.0, EPS, None)
        with torch.no_grad():
            kept = fused_span_attention(*settings)

        @torch.no_grad()
        def forward() -> Any:
            return fused_span_attention(*settings)

        @torch.no_grad()
        def backward() -> Any:
            return fused_span_attention_backward(self.up, *kept, *settings[:-1])  # it knows of no bias

        return {"forward": forward, "whole backward": backward}


def captured(step: Step) -> Callable[[], None]:
    """``CALLS`` calls of the step as one CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            step()

    def replay(kept: Step = step) -> None:  # the graph reads the step's tensors: keep them
        graph.replay()

    return replay


def microseconds(replay: Callable[[], None]) -> float:
    """Of one call, of two replays; one before them keeps the GPU busy until they are sent."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    replay()
    start.record()
    replay()
    replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1000 / (2 * CALLS)


def medians(steps: dict[str, Step], rounds: int) -> Times:
    """Median microseconds of each step; they alternate inside each round."""
    replays = {name: captured(step) for name, step in steps.items()}
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, replay in replays.items():
            taken[name].append(microseconds(replay))
    return {name: statistics.median(times) for name, times in taken.items()}
