"""Encoder and decoder layers: attention and feed-forward sublayers with their norms.

Axes: B batch, T target positions, S source positions, E model width; packed inputs are (rows, E).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor, nn

from qknorm.model.settings import ModelSettings
from qknorm.nn import (
    CrossCache,
    MultiheadAttention,
    Packing,
    RotaryPositions,
    SelfCache,
    Spans,
    make_norm,
)
from qknorm.nn.dropout import add_dropped, relu_dropped
from qknorm.nn.slots import SlotCrossCache, SlotSelfCache


@dataclass
class LayerCache:
    """What one decoder layer keeps between decoding steps."""

    own: SelfCache = field(default_factory=SelfCache)
    cross: CrossCache = field(default_factory=CrossCache)


class FeedForward(nn.Module):
    """Linear, ReLU, dropout, linear."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.inner = nn.Linear(settings.d_model, settings.d_ff)
        self.outer = nn.Linear(settings.d_ff, settings.d_model)
        self.dropout = settings.ff_dropout
        std = (2 / (settings.d_model + settings.d_ff)) ** 0.5
        for linear in (self.inner, self.outer):
            nn.init.normal_(linear.weight, std=std)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        h = relu_dropped(self.inner(x), self.dropout, self.training)
        y: Tensor = self.outer(h)
        return y


class Sublayer(nn.Module):
    """The residual connection around a sublayer: PreNorm x + f(norm(x)) or PostNorm norm(x + f(x))."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.norm = make_norm(settings.norm, settings.d_model)
        self.pre = settings.norm_position == "pre"
        self.dropout = settings.dropout

    def before(self, x: Tensor) -> Tensor:
        """What the sublayer gets."""
        return self.norm(x) if self.pre else x

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        """What comes of x and the sublayer's answer y."""
        x = add_dropped(x, y, self.dropout, self.training)
        return x if self.pre else self.norm(x)


def make_attention(settings: ModelSettings, rotary: RotaryPositions | None = None) -> MultiheadAttention:
    """One attention module as the settings have it, with the authors' initial weights."""
    normalised = settings.qk_norm is not None
    attention = MultiheadAttention(
        settings.d_model,
        settings.heads,
        dropout=settings.attention_dropout,
        batch_first=True,
        qk_norm=settings.qk_norm,
        qk_scale_init=settings.qk_scale_init if normalised else None,
        length=settings.length if normalised and settings.qk_scale_init is None else None,
        qk_scale_per=settings.qk_scale_per,
        qk_scale_learnable=settings.qk_scale_learnable if normalised else None,
        v_norm=settings.v_norm,
        rotary=rotary,
    )
    std = (2 / (5 * settings.d_model)) ** 0.5
    assert attention.in_proj_weight is not None
    nn.init.normal_(attention.in_proj_weight, std=std)
    nn.init.normal_(attention.out_proj.weight, std=std)
    return attention


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, settings: ModelSettings, rotary: RotaryPositions | None = None) -> None:
        super().__init__()
        self.self_attn = make_attention(settings, rotary)
        self.self_attn_sublayer = Sublayer(settings)
        self.ff = FeedForward(settings)
        self.ff_sublayer = Sublayer(settings)

    def forward(
        self,
        x: Tensor,
        padding: Tensor | None,
        packing: Packing | None,
        spans: Spans | None,
        turns: Tensor | None,
    ) -> Tensor:
        h = self.self_attn_sublayer.before(x)
        y, _ = self.self_attn(h, h, h, padding, need_weights=False, packing=packing, spans=spans, turns=turns)
        x = self.self_attn_sublayer.after(x, y)
        return self.ff_sublayer.after(x, self.ff(self.ff_sublayer.before(x)))


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the source, feed-forward."""

    def __init__(self, settings: ModelSettings, rotary: RotaryPositions | None = None) -> None:
        super().__init__()
        self.self_attn = make_attention(settings, rotary)
        self.self_attn_sublayer = Sublayer(settings)
        self.cross_attn = make_attention(settings)
        self.cross_attn_sublayer = Sublayer(settings)
        self.ff = FeedForward(settings)
        self.ff_sublayer = Sublayer(settings)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        memory_padding: Tensor | None,
        packing: Packing | None,
        memory_packing: Packing | None,
        spans: Spans | None,
        memory_spans: Spans | None,
        turns: Tensor | None,
    ) -> Tensor:
        # No padding mask on the target: padding stands at the end, where a causal query never looks.
        h = self.self_attn_sublayer.before(x)
        y, _ = self.self_attn(
            h, h, h, need_weights=False, is_causal=True, packing=packing, spans=spans, turns=turns
        )
        x = self.self_attn_sublayer.after(x, y)
        h = self.cross_attn_sublayer.before(x)
        y, _ = self.cross_attn(
            h, memory, memory, memory_padding, need_weights=False,
            packing=packing, key_packing=memory_packing, spans=memory_spans,
        )  # fmt: skip
        x = self.cross_attn_sublayer.after(x, y)
        return self.ff_sublayer.after(x, self.ff(self.ff_sublayer.before(x)))

    def step(
        self,
        x: Tensor,
        memory: Tensor,
        memory_padding: Tensor | None,
        cache: LayerCache,
        strangers: Tensor | None,
        need_weights: bool,
        turns: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """One new position for each of B × K rows; also the cross-attention weights, (B, H, K, S), if asked.

        x is (B, K, E). The K rows of a sentence (its hypotheses) stand side by side as queries, so the
        sentence's keys and values are kept once. So are those of its hypotheses, past and present;
        ``strangers``, (B, 1, K, all of them), says whose a hypothesis does not descend from.
        """
        # On the CPU the written-out softmax is about twice as fast as the fused kernel for so few queries.
        written_out = need_weights or x.device.type == "cpu"
        h = self.self_attn_sublayer.before(x)
        y, _ = self.self_attn(
            h, h, h, None, written_out, strangers, average_attn_weights=False, cache=cache.own, turns=turns
        )
        x = self.self_attn_sublayer.after(x, y)
        h = self.cross_attn_sublayer.before(x)
        y, weights = self.cross_attn(
            h, memory, memory, memory_padding, written_out, average_attn_weights=False, cache=cache.cross
        )
        x = self.cross_attn_sublayer.after(x, y)
        x = self.ff_sublayer.after(x, self.ff(self.ff_sublayer.before(x)))
        return x, weights if need_weights else None

    def slot_step(self, x: Tensor, own: SlotSelfCache, cross: SlotCrossCache, turns: Tensor | None) -> Tensor:
        """``step`` over caches of static shape: (B, K, E) to (B, K, E)."""
        h = self.self_attn_sublayer.before(x)
        x = self.self_attn_sublayer.after(x, self.self_attn.step(h, own, turns))
        h = self.cross_attn_sublayer.before(x)
        x = self.cross_attn_sublayer.after(x, self.cross_attn.step(h, cross))
        return self.ff_sublayer.after(x, self.ff(self.ff_sublayer.before(x)))
