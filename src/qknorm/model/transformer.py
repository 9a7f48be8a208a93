"""The encoder-decoder Transformer of the paper, every switch of its ablations included.

Axes: B sentences, T target positions, S source positions, E model width, V subwords, K hypotheses
of a sentence. Packed inputs have one axis of rows for B × T or B × S.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qknorm.ids import EOS, PAD, UNK
from qknorm.model import fused
from qknorm.model.layers import DecoderLayer, EncoderLayer, LayerCache
from qknorm.model.settings import ModelSettings
from qknorm.nn import (
    FixNormEmbedding,
    Packing,
    RotaryPositions,
    SinusoidalPositions,
    Spans,
    TiedEmbedding,
    find_spans,
    make_norm,
)
from qknorm.nn.dropout import dropout
from qknorm.nn.packed_embedding import can_fuse_embedding
from qknorm.nn.slots import Sight, SlotCrossCache, SlotSelfCache
from qknorm.nn.spans import places

NEVER = -1e9
"""The logit of a subword that the target language does not have."""


@dataclass
class DecoderState:
    """Everything a decoding in progress needs: the source as encoded, and the layers' caches."""

    memory: Tensor  # (B, S, E)
    memory_padding: Tensor | None  # (B, S), True at padding
    caches: list[LayerCache]
    table: Tensor  # (V, E) output rows, computed once
    bias: Tensor  # (V,) of the output, −10⁹ for subwords that are never predicted
    hypotheses: int = 1  # K
    length: int = 0
    strangers: Tensor | None = None  # (B, K, keys kept), True where a key is no ancestor's
    sifted: int = 0  # the length at which keys were last dropped

    def reorder(self, rows: Tensor) -> None:
        """Make hypothesis i what hypothesis rows[i] was: (B × K) row numbers, each within its sentence.

        The keys and values of a sentence's hypotheses stay where they are, for all of them to see; what
        moves is who descends from whom.
        """
        B, K = self.memory.size(0), self.hypotheses
        if self.strangers is None and K == 1 and rows.numel() == B:
            return  # one hypothesis a sentence, and it stays
        self.hypotheses = rows.numel() // B
        if self.strangers is None:
            self.strangers = rows.new_zeros(B, K, self.length, dtype=torch.bool)
        self.strangers = self.strangers.flatten(0, 1)[rows].view(B, self.hypotheses, self.strangers.size(2))

    def keep(self, sentences: Tensor) -> None:
        """Go on with these sentences only."""
        for cache in self.caches:
            cache.own.reorder(sentences)
            cache.cross.reorder(sentences)
        self.memory = self.memory.index_select(0, sentences)
        if self.memory_padding is not None:
            self.memory_padding = self.memory_padding.index_select(0, sentences)
        if self.strangers is not None:
            self.strangers = self.strangers.index_select(0, sentences)

    def advance(self, hypotheses: int) -> Tensor | None:
        """Make place for one more key of each hypothesis; returns self-attention's mask, (B, 1, K, keys)."""
        if self.length and hypotheses != self.hypotheses:
            raise ValueError(
                f"the state has {self.hypotheses} hypotheses a sentence, the new ids {hypotheses}; "
                "use reorder() when they change"
            )
        self.hypotheses = hypotheses
        every = max(8, math.isqrt(2 * self.length))  # balances reading dead keys against copying live ones
        if self.length - self.sifted >= every:
            self._sift(room_for=every)
        self.length += 1
        if self.strangers is None and hypotheses == 1:
            return None  # all keys are its own
        B = self.memory.size(0)
        others = ~torch.eye(hypotheses, dtype=torch.bool, device=self.memory.device).expand(B, -1, -1)
        self.strangers = others if self.strangers is None else torch.cat([self.strangers, others], dim=2)
        return self.strangers.unsqueeze(1)

    def _sift(self, room_for: int) -> None:
        """Drop the keys that no hypothesis descends from; those left share all but their newest ones."""
        self.sifted = self.length
        if self.strangers is None:
            return
        needed = ~self.strangers.all(dim=1)  # (B, keys)
        most = int(needed.sum(dim=1).max())
        positions = needed.byte().sort(dim=1, descending=True, stable=True).indices[:, :most]
        for cache in self.caches:
            cache.own.keep_positions(positions, most + self.hypotheses * room_for)
        self.strangers = self.strangers.gather(2, positions[:, None].expand(-1, self.hypotheses, -1))


@dataclass
class SlotState:
    """What decoding in slots of static shape needs; its tensors are written in place and never move."""

    own: list[SlotSelfCache]  # of each layer
    cross: list[SlotCrossCache]
    sight: Sight
    table: Tensor  # (V, E) output rows
    bias: Tensor  # (V,) of the output, −10⁹ for subwords that are never predicted
    room: int  # T, target positions
    source_room: int  # S


class Transformer(nn.Module):
    """``model(source, target)`` gives the logits of each next target subword.

    Padded: source (B, S), target (B, T) ids, padding at the end of a row; logits (B, T, V). Packed: both
    flat, with ``source_packing`` and ``target_packing`` saying where the sentences lie; logits (rows, V).

    Args:
        vocab_size: V, the subwords of both languages and the four special ones.
        settings: everything else; ``ModelSettings()`` is the paper's base model.
        target_subwords: (V,) True for subwords the target side has; others are never predicted.
    """

    target_subwords: Tensor | None

    def __init__(
        self,
        vocab_size: int,
        settings: ModelSettings | None = None,
        target_subwords: Tensor | None = None,
    ) -> None:
        super().__init__()
        settings = ModelSettings() if settings is None else settings
        if vocab_size <= EOS + 1:
            raise ValueError(f"vocab_size must be more than the {EOS + 1} special subwords, not {vocab_size}")
        self.settings = settings
        make_embedding = FixNormEmbedding if settings.fix_norm else TiedEmbedding
        self.embedding = make_embedding(vocab_size, settings.d_model)
        self.positions = SinusoidalPositions(settings.d_model, odd=settings.positions)
        self.languages = nn.Embedding(settings.languages, settings.d_model) if settings.languages else None
        self.rotary = RotaryPositions(settings.d_model // settings.heads) if settings.rotary else None
        self.encoder = nn.ModuleList(
            EncoderLayer(settings, self.rotary) for _ in range(settings.encoder_layers)
        )
        self.decoder = nn.ModuleList(
            DecoderLayer(settings, self.rotary) for _ in range(settings.decoder_layers)
        )
        final = settings.norm if settings.norm_position == "pre" else "none"
        self.encoder_norm = make_norm(final, settings.d_model)
        self.decoder_norm = make_norm(final, settings.d_model)
        if self.languages is not None:
            nn.init.normal_(self.languages.weight, std=settings.d_model**-0.5)
        if target_subwords is not None and target_subwords.shape != (vocab_size,):
            raise ValueError(
                f"target_subwords must have one entry per subword ({vocab_size}), "
                f"not shape {tuple(target_subwords.shape)}"
            )
        self.register_buffer("target_subwords", None if target_subwords is None else target_subwords.bool())

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_packing: Packing | None = None,
        target_packing: Packing | None = None,
        source_language: int | Tensor = 0,
        target_language: int | Tensor = 1,
    ) -> Tensor:
        """Logits of the subword after each of ``target``'s, which begins with BOS."""
        if (source_packing is None) != (target_packing is None):
            raise ValueError("give both source_packing and target_packing, or neither")
        memory, padding = self.encode(source, source_packing, source_language)
        h = self.decode(target, memory, padding, target_packing, source_packing, target_language)
        return self.logits(h)

    def encode(
        self, source: Tensor, packing: Packing | None = None, language: int | Tensor = 0
    ) -> tuple[Tensor, Tensor | None]:
        """The encoded source, (B, S, E) or (rows, E), and where it is padding."""
        padding = None if packing is not None else source == PAD
        spans = None if packing is None else find_spans(packing, source.size(0))  # the same for all layers
        x = self.embed(source, packing, language, spans)
        turns = self.turns(source, packing, spans)
        if spans is not None and self.fuses(x):
            return fused.encode(self, x, spans, turns), None
        for layer in self.encoder:
            x = layer(x, padding, packing, spans, turns)
        return self.encoder_norm(x), padding

    def decode(
        self,
        target: Tensor,
        memory: Tensor,
        memory_padding: Tensor | None = None,
        packing: Packing | None = None,
        memory_packing: Packing | None = None,
        language: int | Tensor = 1,
    ) -> Tensor:
        """The decoder's last hidden states, before the output projection."""
        spans = memory_spans = None
        if packing is not None:
            spans = find_spans(packing, target.size(0), is_causal=True)
            memory_spans = find_spans(packing, target.size(0), memory_packing, memory.size(0))
        x = self.embed(target, packing, language, spans)
        turns = self.turns(target, packing, spans)
        if spans is not None and memory_spans is not None and self.fuses(x):
            return fused.decode(self, x, memory, spans, memory_spans, turns)
        for layer in self.decoder:
            x = layer(x, memory, memory_padding, packing, memory_packing, spans, memory_spans, turns)
        return self.decoder_norm(x)  # type: ignore[no-any-return]

    def logits(self, h: Tensor) -> Tensor:
        """(…, E) to (…, V); subwords the target side does not have get −10⁹ (in float16 its lowest)."""
        logits = self.embedding.project(h)
        if self.target_subwords is None:
            return logits
        return logits.masked_fill(~self.target_subwords, max(NEVER, torch.finfo(logits.dtype).min))

    def start(self, source: Tensor, language: int | Tensor = 0) -> DecoderState:
        """Encode (B, S) sources for step-by-step decoding."""
        memory, padding = self.encode(source, language=language)
        return DecoderState(memory, padding, [LayerCache() for _ in self.decoder], *self.output(memory.dtype))

    def output(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The output projection's rows (V, E) and bias (V,), which says −10⁹ of what is never predicted."""
        table = self.embedding.table().to(dtype)
        given = self.embedding.bias
        bias = table.new_zeros(table.size(0)) if given is None else given.to(dtype)
        if self.target_subwords is not None:
            bias = bias.masked_fill(~self.target_subwords, max(NEVER, torch.finfo(bias.dtype).min))
        return table, bias

    def step(
        self,
        ids: Tensor,
        state: DecoderState,
        language: int | Tensor = 1,
        need_weights: bool = False,
    ) -> tuple[Tensor, list[Tensor]]:
        """Logits (B, K, V) after the newest subwords (B, K), and each layer's cross-attention if asked."""
        x = self.embedding(ids) + self.positions(1, state.length, ids.device)
        turns = None if self.rotary is None else self.rotary(1, state.length, ids.device)  # one for all
        strangers = state.advance(ids.size(1))
        if self.languages is not None:
            x = x + self._language(language, ids.dim())
        x = dropout(x, self.settings.dropout, self.training)
        weights = []
        for layer, cache in zip(self.decoder, state.caches, strict=True):
            x, w = layer.step(  # type: ignore[operator]
                x, state.memory, state.memory_padding, cache, strangers, need_weights, turns
            )
            weights.append(w)
        logits = F.linear(self.decoder_norm(x), state.table, state.bias)
        return logits, weights if need_weights else []

    def slot_step(self, ids: Tensor, state: SlotState) -> Tensor:
        """Logits (B, K, V) after the newest subwords (B, K) of slots; same shapes and places every time."""
        positions = state.sight.positions
        x = self.embedding(ids) + self.positions.at(positions, state.room).unsqueeze(1)
        turns = None if self.rotary is None else self.rotary.at(positions, state.room).unsqueeze(1)
        if self.languages is not None:
            x = x + self._language(1, ids.dim())
        state.sight.mask(x, state.source_room)
        for layer, own, cross in zip(self.decoder, state.own, state.cross, strict=True):
            x = layer.slot_step(x, own, cross, turns)  # type: ignore[operator]
        return F.linear(self.decoder_norm(x), state.table, state.bias)

    def embed(
        self, ids: Tensor, packing: Packing | None, language: int | Tensor, spans: Spans | None = None
    ) -> Tensor:
        """Word · √E + position + language, after word dropout; then dropout.

        ``spans`` of self-attention say where sentences begin, for a kernel that does it all.
        """
        if ids.dim() != (1 if packing is not None else 2):
            wanted = "flat (rows,) with a packing" if packing is not None else "(sentences, positions)"
            raise ValueError(f"ids must be {wanted}, not {tuple(ids.shape)}")
        if spans is not None and isinstance(language, int) and can_fuse_embedding(self.embedding.weight):
            assert packing is not None
            return fused.embed(self, ids, packing, language, spans)
        if self.training and self.settings.word_dropout > 0:
            dropped = torch.rand(ids.shape, device=ids.device) < self.settings.word_dropout
            ids = torch.where(dropped & (ids != PAD), UNK, ids)
        if packing is None:
            positions = self.positions(ids.size(1), 0, ids.device)
        else:
            positions = self.positions.at(packing.place(ids.size(0))[1], packing.max_length)
        x = self.embedding(ids) + positions
        if self.languages is not None:
            x = x + self._language(language, ids.dim())
        return dropout(x, self.settings.dropout, self.training)

    def make_room(self, length: int) -> None:
        """Room for sentences of this length: from here on their positions stand where they stand."""
        for positions in (self.positions, self.rotary):
            if positions is not None:
                positions.upto(length)

    def tables(self) -> list[Tensor]:
        """The tables of positions: neither parameters nor buffers, and others once they have grown."""
        return [self.positions.table, *([] if self.rotary is None else [self.rotary.table])]

    def turns(self, ids: Tensor, packing: Packing | None, spans: Spans | None) -> Tensor | None:
        """The rows of ``rotary`` for these ids, the same for all layers: (positions, D), packed (rows, D)."""
        if self.rotary is None:
            return None
        if packing is None or spans is None:
            turns: Tensor = self.rotary(ids.size(1), 0, ids.device)
            return turns
        return self.rotary.at(places(spans), packing.max_length)

    def fuses(self, x: Tensor) -> bool:
        """Whether packed layers consist of kernels alone, for (rows, E) inputs like x."""
        return not torch.compiler.is_compiling() and fused.can_fuse(self, x)

    def _language(self, language: int | Tensor, ids_dim: int) -> Tensor:
        """The embedding of one language for all, or of one per sentence (padded) or row (packed)."""
        assert self.languages is not None
        if isinstance(language, int):
            return self.languages.weight[language]
        x: Tensor = self.languages(language)
        return x if ids_dim == 1 else x.unsqueeze(1)

    def extra_repr(self) -> str:
        return f"parameters={sum(p.numel() for p in self.parameters()):,}"
