"""See what attention does: how large its logits get, and whether its softmax is saturated.

    with observe(model) as seen:
        model(batch)
    print(seen)

Axes: B batch, H heads, T queries, S keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from qknorm.nn.attention import Logits, MultiheadAttention
from qknorm.nn.convert import attention_modules
from qknorm.nn.functional import add_causal, attention_logits
from qknorm.nn.packed import unpack

SATURATED = 0.99


@dataclass(frozen=True)
class AttentionStats:
    """What one attention module did while it was observed.

    Rows that may look at fewer than two keys have no choice to make and are left out of
    ``saturated`` and ``entropy``.
    """

    max_logit: float
    """The largest |logit| before the softmax."""
    saturated: float
    """Share of rows whose largest weight is above 0.99."""
    entropy: float
    """Mean entropy of a row's weights, in nats."""
    rows: int
    """Rows counted: queries × heads."""
    g: tuple[float, ...] | None
    """The scale, one value or one per head; None where nothing is normalised."""


class Observation:
    """Statistics by module name, gathered on the device and read out only when asked for."""

    def __init__(self, modules: dict[str, MultiheadAttention]) -> None:
        self._modules = modules
        self._sums: dict[str, Tensor] = {}  # [largest logit, saturated rows, sum of entropies, rows]

    def __getitem__(self, name: str) -> AttentionStats:
        if name not in self._modules:
            raise KeyError(f"no attention module {name!r}; there are {', '.join(map(repr, self._modules))}")
        sums = self._sums.get(name)
        largest, saturated, entropy, rows = (0.0,) * 4 if sums is None else sums.tolist()
        scale = self._modules[name].qk_scale
        return AttentionStats(
            max_logit=largest,
            saturated=saturated / rows if rows else math.nan,
            entropy=entropy / rows if rows else math.nan,
            rows=int(rows),
            g=None if scale is None else tuple(scale.detach().float().tolist()),
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)

    def items(self) -> list[tuple[str, AttentionStats]]:
        return [(name, self[name]) for name in self]

    def __str__(self) -> str:
        width = max([len("module"), *map(len, self._modules)])
        lines = [f"{'module':<{width}}  max |logit|  saturated  entropy  g"]
        for name, s in self.items():
            g = "–" if s.g is None else f"{s.g[0]:.2f}" if len(s.g) == 1 else f"{min(s.g):.2f}…{max(s.g):.2f}"
            lines.append(f"{name:<{width}}  {s.max_logit:11.2f}  {s.saturated:9.1%}  {s.entropy:7.3f}  {g}")
        return "\n".join(lines)

    @torch.no_grad()
    def _add(self, name: str, seen: Logits) -> None:
        new = _measure(seen)
        old = self._sums.get(name)
        if old is not None:
            new[0] = torch.maximum(new[0], old[0])
            new[1:] += old[1:]
        self._sums[name] = new


@contextmanager
def observe(model: nn.Module) -> Iterator[Observation]:
    """Watch every qknorm attention module of a model (``qk_norm=None`` ones too) while the block runs.

    To watch a plain PyTorch model as it is, ``convert(model, qk_norm=None)`` it first. The logits are
    computed once more, so expect it to be slower.
    """
    modules = attention_modules(model)
    if not modules:
        raise ValueError("observe found no qknorm.nn.MultiheadAttention in the model; convert() it first")
    observation = Observation(modules)
    before = {name: module._observer for name, module in modules.items()}
    try:
        for name, module in modules.items():
            module._observer = _handler(observation, name)
        yield observation
    finally:
        for name, module in modules.items():
            module._observer = before[name]


def _handler(observation: Observation, name: str):  # type: ignore[no-untyped-def]
    return lambda seen: observation._add(name, seen)


def _measure(seen: Logits) -> Tensor:
    q, k, mask, is_causal, scale, packing, key_packing = seen
    query_there: Tensor | None = None
    if packing is not None:
        keys = packing if key_packing is None else key_packing
        query_there = packing.grid(q.size(0))[1][:, None, :, None]  # (N, 1, L, 1)
        mask = keys.grid(k.size(0))[1][:, None, None, :]  # (N, 1, 1, Lk)
        q, k = unpack(q, packing).transpose(1, 2), unpack(k, keys).transpose(1, 2)
    if is_causal:
        mask = add_causal(mask, q.size(-2), k.size(-2), q.device)
    logits = attention_logits(q.float(), k.float(), mask, scale)  # (B, H, T, S)
    open_ = logits > -torch.inf
    if query_there is not None:
        open_ = open_ & query_there
    choice = open_.sum(-1) >= 2  # (B, H, T)
    weights = torch.where(choice[..., None], logits, 0.0).softmax(-1)
    entropy = torch.special.entr(weights).sum(-1)
    return torch.stack(
        [
            torch.where(open_, logits, 0.0).abs().max().double(),
            ((weights.amax(-1) > SATURATED) & choice).sum().double(),
            torch.where(choice, entropy, 0.0).sum().double(),
            choice.sum().double(),
        ]
    )
