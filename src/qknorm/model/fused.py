"""Packed layers from kernels that do everything between two products in one go.

The same function as the layers' own ``forward``, sublayer by sublayer: an answer is added to the residual
stream and the sum normalised for the next sublayer in one kernel, also where the next is another layer's.

Axes: R rows of a buffer, E model width.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from qknorm.ids import PAD, UNK
from qknorm.model.layers import DecoderLayer, EncoderLayer, FeedForward, Sublayer
from qknorm.nn import MultiheadAttention, Packing, Spans
from qknorm.nn.aside import linear
from qknorm.nn.packed_embedding import Wording, embed_rows
from qknorm.nn.residual import can_fuse_residual, join_norm, relu_dropout
from qknorm.nn.span_attention import SEEDS

if TYPE_CHECKING:
    from qknorm.model.transformer import Transformer

SEEDS_A_LAYER = 6
"""At most: two for each sublayer."""


class Stream:
    """The residual stream on its way through sublayers: what there is, and an answer not yet added."""

    def __init__(
        self, x: Tensor, seeds: Iterator[Tensor] | None, dtype: torch.dtype, dropout: float, pre: bool
    ) -> None:
        self.x = x  # (R, E)
        self.seeds = seeds  # None: nothing is dropped
        self.dtype = dtype  # of the products
        self.dropout = dropout
        self.pre = pre
        self.norm: nn.Module | None = None  # of the sublayer under way, where norms come after them
        self.answer: Tensor | None = None  # (R, E) without its bias
        self.bias: Tensor | None = None

    def enter(self, norm: nn.Module) -> Tensor:
        """Add the last answer, and normalise for the next sublayer; (R, E).

        With PostNorm the sum is normalised by the norm of the sublayer that gave the answer.
        """
        p = 0.0 if self.seeds is None or self.answer is None else self.dropout
        if self.pre:
            self.x, h = join_norm(self.x, self.answer, self.bias, norm, p, self.seed(p), self.dtype)
            return h
        if self.norm is not None:
            _, self.x = join_norm(self.x, self.answer, self.bias, self.norm, p, self.seed(p), self.x.dtype)
        self.norm = norm
        return self.x.to(self.dtype)

    def leave(self, answer: Tensor, bias: Tensor | None) -> None:
        self.answer, self.bias = answer, bias

    def seed(self, p: float) -> Tensor | None:
        return None if self.seeds is None or p == 0.0 else next(self.seeds)


def can_fuse(model: Transformer, x: Tensor) -> bool:
    """Whether the kernels do all that these layers do."""
    norms = [model.encoder_norm, model.decoder_norm]
    norms += [m.norm for m in model.modules() if isinstance(m, Sublayer)]
    attentions = [getattr(layer, name) for layer in model.decoder for name in ("self_attn", "cross_attn")]
    attentions += [layer.self_attn for layer in model.encoder]
    return all(can_fuse_residual(x, norm) for norm in norms) and all(
        attention.answers(x) for attention in attentions
    )


def embed(model: Transformer, ids: Tensor, packing: Packing, language: int, spans: Spans) -> Tensor:
    """Words of packed sentences to (R, E), as ``Transformer.embed`` has it."""
    settings, embedding = model.settings, model.embedding
    seeds = torch.randint(SEEDS, (2,), device=ids.device) if model.training else None
    return embed_rows(
        ids,
        spans,
        embedding.weight,
        model.positions.upto(packing.max_length, ids.device),
        None if model.languages is None else model.languages.weight[language],
        seeds,
        Wording(
            embedding.unit,
            embedding.input_scale,
            settings.word_dropout,
            settings.dropout,
            pad=PAD,
            unknown=UNK,
        ),
    )


def encode(model: Transformer, x: Tensor, spans: Spans, turns: Tensor | None = None) -> Tensor:
    """The encoder's layers and last norm, from embedded (R, E) to encoded (R, E)."""
    stream = _stream(model, x)
    for layer in model.encoder:
        assert isinstance(layer, EncoderLayer)
        _attend(layer.self_attn, stream, layer.self_attn_sublayer.norm, spans, turns=turns)
        _feed_forward(layer.ff, stream, layer.ff_sublayer.norm)
    return stream.enter(model.encoder_norm)


def decode(
    model: Transformer,
    x: Tensor,
    memory: Tensor,
    spans: Spans,
    memory_spans: Spans,
    turns: Tensor | None = None,
) -> Tensor:
    """The decoder's layers and last norm, from embedded (R, E) to hidden states (R, E)."""
    stream = _stream(model, x)
    for layer in model.decoder:
        assert isinstance(layer, DecoderLayer)
        _attend(layer.self_attn, stream, layer.self_attn_sublayer.norm, spans, turns=turns)
        _attend(layer.cross_attn, stream, layer.cross_attn_sublayer.norm, memory_spans, memory)
        _feed_forward(layer.ff, stream, layer.ff_sublayer.norm)
    return stream.enter(model.decoder_norm)


def _attend(
    attention: MultiheadAttention,
    stream: Stream,
    norm: nn.Module,
    spans: Spans,
    memory: Tensor | None = None,
    turns: Tensor | None = None,
) -> None:
    h = stream.enter(norm)
    key = h if memory is None else memory
    answer = attention.answer(h, key, spans, stream.seed(attention.dropout), turns)
    stream.leave(answer, attention.out_proj.bias)


def _feed_forward(ff: FeedForward, stream: Stream, norm: nn.Module) -> None:
    h = stream.enter(norm)
    p = ff.dropout if stream.seeds is not None else 0.0
    inner = relu_dropout(linear(h, ff.inner.weight), ff.inner.bias, p, stream.seed(p))
    stream.leave(linear(inner, ff.outer.weight), ff.outer.bias)


def _stream(model: Transformer, x: Tensor) -> Stream:
    seeds = None
    if model.training:  # one draw for all: a kernel each would take longer than what they decide
        count = SEEDS_A_LAYER * max(len(model.encoder), len(model.decoder)) + 1
        seeds = iter(torch.split(torch.randint(SEEDS, (count,), device=x.device), 1))
    first = next(iter(model.encoder))
    assert isinstance(first, EncoderLayer)
    pre = model.settings.norm_position == "pre"
    return Stream(x, seeds, first.ff.inner.weight.dtype, model.settings.dropout, pre)
