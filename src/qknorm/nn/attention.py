"""``MultiheadAttention``: ``torch.nn.MultiheadAttention`` with normalised queries and keys.

Axes: B batch, T query positions, S key positions, E model width, H heads, D = E / H width of one head,
R and Rk rows of packed query and key buffers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from qknorm.nn.aside import linear, linear_pair
from qknorm.nn.cache import CrossCache, SelfCache
from qknorm.nn.functional import attention
from qknorm.nn.masks import merge_masks
from qknorm.nn.norms import L2Norm
from qknorm.nn.packed import Packing, check_packed, packed_attention
from qknorm.nn.positions import RotaryPositions, check_turns, turn
from qknorm.nn.projections import Projections
from qknorm.nn.slots import SlotCrossCache, SlotSelfCache
from qknorm.nn.span_attention import can_fuse_spans, span_attention
from qknorm.nn.spans import Spans, find_spans
from qknorm.nn.turning import turned


class Logits(NamedTuple):
    """What an observer of a module is shown at each call: all that decides the attention weights."""

    q: Tensor  # (B, H, T, D), or packed (R, H, D); normalised, scaled and turned
    k: Tensor  # (B, H, S, D), or packed (Rk, H, D); normalised and turned
    attn_mask: Tensor | None  # True where a query may look, or added to the logits
    is_causal: bool
    scale: float
    packing: Packing | None
    key_packing: Packing | None


class MultiheadAttention(Projections):
    """Multi-head attention with the constructor, ``forward`` and weights of ``torch.nn.MultiheadAttention``.

    Args:
        embed_dim: model width E.
        num_heads: H; must divide ``embed_dim``.
        dropout: on the attention weights, while training.
        bias: biases in the projections.
        add_bias_kv: append a learned key and value.
        add_zero_attn: append a zero key and value.
        kdim: width of ``key``, where it differs.
        vdim: width of ``value``, where it differs.
        batch_first: inputs are (B, T, E) and not (T, B, E).
        qk_norm: ``None`` is scaled dot product attention. ``"l2"`` is the paper: unit-length queries and
            keys per head, logits multiplied by g. ``"rms"``, ``"layer"``: those norms per head, with
            weights shared by all heads. ``"rms_across_heads"``: RMS over all heads jointly.
        qk_scale_init: where g starts. Default: from ``length`` with ``"l2"``, 1/√D with the others.
        length: a typical long sequence L; g starts at log2(L² − L), equation (3), or with the other norms,
            whose vectors are √D long, at that over D: logits of the same size. Default 64 with ``"l2"``.
        qk_scale_per: one g for the ``"layer"`` (the paper) or one per ``"head"``.
        qk_scale_learnable: whether g is a parameter or a fixed buffer. Default: learned with ``"l2"``,
            fixed with the others, whose norms have weights of their own.
        v_norm: also l2-normalise the values per head (an ablation of the paper).
        rotary: turn queries and keys by their positions, after their norm; modules may share one.
    """

    # torch.nn.TransformerEncoderLayer's inference fast path computes attention from the projection
    # weights itself and would skip the normalisation; it asks this attribute whether it may.
    _qkv_same_embed_dim = False

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        qk_norm: str | None = None,
        qk_scale_init: float | None = None,
        length: float | None = None,
        qk_scale_per: str = "layer",
        qk_scale_learnable: bool | None = None,
        v_norm: bool = False,
        rotary: RotaryPositions | None = None,
    ) -> None:
        super().__init__(
            embed_dim,
            num_heads,
            bias=bias,
            add_bias_kv=add_bias_kv,
            add_zero_attn=add_zero_attn,
            kdim=kdim,
            vdim=vdim,
            device=device,
            dtype=dtype,
            qk_norm=qk_norm,
            qk_scale_init=qk_scale_init,
            length=length,
            qk_scale_per=qk_scale_per,
            qk_scale_learnable=qk_scale_learnable,
            v_norm=v_norm,
            rotary=rotary,
        )
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout must be at least 0 and below 1, not {dropout}")
        self.dropout = dropout
        self.batch_first = batch_first
        self._observer: Callable[[Logits], None] | None = None

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        packing: Packing | None = None,
        key_packing: Packing | None = None,
        spans: Spans | None = None,
        cache: SelfCache | CrossCache | None = None,
        turns: Tensor | None = None,
        key_turns: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend; returns ``(output, weights)``, the weights None unless asked for.

        The arguments of ``torch.nn.MultiheadAttention.forward`` mean what they mean there: masks say True
        where a query must **not** look (or are added to the logits), weights are averaged over heads
        unless ``average_attn_weights=False``. Beyond it: ``key`` and ``value`` default to ``query`` and
        ``key``; ``is_causal`` needs no mask beside it; rows that may look nowhere give the output bias;
        ``attn_mask`` may be (B, 1, T, S), one for each sequence.

        Args:
            packing: ``query`` is (R, E), many sentences in one buffer; attention stays inside each.
            key_packing: where the keys' sentences lie, for packed cross-attention.
            spans: ``find_spans`` of these packings, where several modules share them; each module finds
                its own otherwise.
            cache: a ``SelfCache`` adds the new keys and values to those of earlier calls (queries see
                all of those, and with ``is_causal`` of the new ones only what came before);
                a ``CrossCache`` is filled at the first call, and ``key`` is ignored afterwards.
            turns: rows of ``rotary`` for the queries' positions, (T, D), (1, D), (B, T, D) or packed (R, D).
                Without, positions count from 0 (packed: in each sentence; with a ``SelfCache``: from its
                length).
            key_turns: the same for the new keys. Without, they have those of the queries in self-attention
                (``key`` is ``query``, or one ``packing`` or a ``SelfCache`` says so), and count from 0
                where a ``key_packing`` or a ``CrossCache`` says that they are others.
        """
        key = query if key is None else key
        value = key if value is None else value
        self._check_turned(turns, key_turns)
        if packing is not None:
            if need_weights or cache is not None or key_padding_mask is not None or attn_mask is not None:
                raise ValueError(
                    "packed input takes no masks and no cache, and returns no weights (need_weights=False)"
                )
            places = packing, key_packing, spans, turns, key_turns
            return self._forward_packed(query, key, value, is_causal, *places), None
        for name, given in (("key_packing", key_packing), ("spans", spans)):
            if given is not None:
                raise ValueError(f"{name} needs packing: where the queries' sentences lie")

        batched = query.dim() == 3
        query, key, value = self._batch_first(query, key, value)
        if not batched and key_padding_mask is not None:
            key_padding_mask = key_padding_mask[None]
        q, k, v, offset = self._heads(query, key, value, cache, turns, key_turns)
        appended = (self.bias_k is not None) + self.add_zero_attn
        mask, is_causal = merge_masks(
            q, k, key_padding_mask, attn_mask, is_causal, need_weights, offset, appended
        )
        scale = self._fixed_scale()
        if self._observer is not None:
            self._observer(Logits(q, k, mask, is_causal, scale, None, None))
        dropout_p = self.dropout if self.training else 0.0
        weights: Tensor | None = None
        if need_weights:
            out, weights = attention(q, k, v, mask, is_causal, dropout_p, need_weights=True, scale=scale)
            weights = weights.mean(dim=1) if average_attn_weights else weights
        else:
            out = attention(q, k, v, mask, is_causal, dropout_p, scale=scale)
        out = self.out_proj(out.transpose(1, 2).flatten(-2))  # (B, T, E)

        if not batched:
            return out[0], None if weights is None else weights[0]
        return out if self.batch_first else out.transpose(0, 1), weights

    def step(
        self, query: Tensor, cache: SlotSelfCache | SlotCrossCache, turns: Tensor | None = None
    ) -> Tensor:
        """One new position of each hypothesis, (B, K, E), over caches of static shape; for inference.

        With ``rotary``, ``turns`` are its (B, 1, D) rows for these positions.
        """
        if self.bias_k is not None or self.add_zero_attn:
            raise ValueError("a cache does not go with add_bias_kv or add_zero_attn")
        self._check_turned(turns)
        if isinstance(cache, SlotSelfCache):
            q, k, v = self._projected_and_normalized(query, query, query)  # (B, K, H, D)
            if self.rotary is not None:
                q, k = self._turned(q, k, self._needed(turns))
            out = cache.attend(q, k, v, self._fixed_scale())
        else:
            q = self._normalized_query(self._project_query(query))
            if self.rotary is not None:
                q = turn(q, self._needed(turns).unsqueeze(-2))
            out = cache.attend(q, self._fixed_scale())
        projected: Tensor = self.out_proj(out.flatten(-2))
        return projected

    @property
    def observed(self) -> bool:
        """Whether diagnostics watch this module; ``step`` shows them nothing."""
        return self._observer is not None

    def keys_and_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """(B, H, S, D) normalised keys and values of a (B, S, E) memory, as a cache keeps them."""
        _, k, v = self._projected_and_normalized(memory[:, :1], memory, memory)
        if self.rotary is not None:
            k = turn(k, self.rotary(k.size(1), 0, k.device).unsqueeze(-2))
        return k.transpose(1, 2), v.transpose(1, 2)

    def _forward_packed(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        is_causal: bool,
        packing: Packing,
        key_packing: Packing | None,
        spans: Spans | None,
        turns: Tensor | None,
        key_turns: Tensor | None,
    ) -> Tensor:
        if query.dim() != 2 or key.dim() != 2 or value.dim() != 2:
            raise ValueError(
                f"packed query, key and value must be (rows, width); query is {tuple(query.shape)}"
            )
        if self.bias_k is not None or self.add_zero_attn:
            raise ValueError("packed input does not go with add_bias_kv or add_zero_attn")
        check_packed(query, key, value, packing, key_packing or packing, is_causal)
        scale = self._fixed_scale()
        if self.rotary is not None:
            turns, key_turns = self._packed_turns(query, key, packing, key_packing, turns, key_turns)
        dropout_p = self.dropout if self.training else 0.0
        if self._takes_spans(query, key, value, key_turns):
            q, kv = self._project_side_by_side(query, key)
            if turns is not None:
                q = turned(q, turns)
            keys = q if kv is None else kv
            if spans is None:
                spans = find_spans(packing, q.size(0), key_packing, keys.size(0), is_causal)
            out = span_attention(
                q,
                kv,
                self.qk_scale,
                spans,
                dropout_p,
                scale,
                self._eps(),
                unit_values=self.v_norm is not None,
            )
        else:
            q, k, v = self._projected_and_normalized(query, key, value)  # (R, H, D)
            if turns is not None:
                q, k = self._turned(q, k, turns, key_turns)
            if self._observer is not None:
                self._observer(Logits(q, k, None, is_causal, scale, packing, key_packing))
            out = packed_attention(q, k, v, packing, key_packing, is_causal, dropout_p, scale)
        projected: Tensor = self.out_proj(out.flatten(-2))
        return projected

    def answers(self, x: Tensor) -> bool:
        """Whether ``answer`` does what packed ``forward`` does, for inputs on x's device."""
        return self.in_proj_bias is not None and self.embed_dim == self.kdim and self._takes_spans(x, x, x)

    def answer(
        self, query: Tensor, key: Tensor, spans: Spans, seed: Tensor | None, turns: Tensor | None = None
    ) -> Tensor:
        """Packed attention without the bias of the output projection, for a kernel that adds it later.

        Args:
            query: (R, E), in the dtype of the weights.
            key: (Rk, E), or ``query`` itself.
            seed: decides what dropout drops; None: nothing.
            turns: with ``rotary``, whose keys must be the queries' own, (R, D) rows of it.
        """
        self._check_turned(turns)
        w, bias = self.in_proj_weight, self.in_proj_bias
        assert w is not None and bias is not None
        b = bias.detach().to(query.dtype)
        wanted: Tensor | None = bias  # whose gradient attention is to find
        if query is key:
            q, kv = self._split(linear(query, w, b)), None
            if self.rotary is not None:
                q, wanted = turned(q, self._needed(turns), bias), None
        else:
            assert self.rotary is None
            of_query, of_key = linear_pair(query, key, w, b, self.embed_dim)
            q, kv = self._split(of_query), self._split(of_key)
        settings = 0.0 if seed is None else self.dropout, self._fixed_scale(), self._eps(), wanted, seed
        out = span_attention(q, kv, self.qk_scale, spans, *settings, self.v_norm is not None)
        return linear(out.flatten(-2), self.out_proj.weight)

    def _takes_spans(
        self, query: Tensor, key: Tensor, value: Tensor, key_turns: Tensor | None = None
    ) -> bool:
        """Whether packed attention can go from the projections to its result in one kernel."""
        return (
            key is value
            and (self.rotary is None or (query is key and key_turns is None))
            and self.in_proj_weight is not None
            and self._observer is None
            and (self.qk_norm is None or self._normalizes_jointly())
            and (self.v_norm is None or self.q_norm is None or self.v_norm.eps == self._eps())
            and can_fuse_spans(query, self.head_dim)
            and can_fuse_spans(key, self.head_dim)
        )

    def _packed_turns(
        self,
        query: Tensor,
        key: Tensor,
        packing: Packing,
        key_packing: Packing | None,
        turns: Tensor | None,
        key_turns: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Rows of ``rotary`` for packed queries, (R, D), and for keys, (Rk, D); None: the queries'."""
        assert self.rotary is not None
        if turns is None:
            turns = self.rotary.at(packing.place(query.size(0))[1], packing.max_length)
        if key_turns is None and key_packing is not None and key_packing is not packing:
            key_turns = self.rotary.at(key_packing.place(key.size(0))[1], key_packing.max_length)
        check_turns(turns, self.head_dim, query.size(0))
        if key_turns is not None:
            check_turns(key_turns, self.head_dim, key.size(0), what="keys")
        return turns, key_turns

    def _turns(
        self,
        query: Tensor,
        key: Tensor,
        cache: SelfCache | CrossCache | None,
        turns: Tensor | None,
        key_turns: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Rows of ``rotary`` for the queries, and for the new keys; None: the queries'."""
        assert self.rotary is not None
        T, S, offset = query.size(1), key.size(1), cache.length if isinstance(cache, SelfCache) else 0
        same = key is query or (isinstance(cache, SelfCache) and T == S)
        if key_turns is None and not same:
            if turns is not None and cache is None:
                raise ValueError(
                    "turns say where the queries stand, and key is another tensor: say with key_turns where "
                    "its positions are"
                )
            key_turns = self.rotary(S, offset, key.device)
        if turns is None:
            turns = self.rotary(T, offset, query.device)
        if key_turns is not None:
            check_turns(key_turns, self.head_dim, S, key.size(0), "keys")
        return turns, key_turns

    def _check_turned(self, *given: Tensor | None) -> None:
        if self.rotary is None and any(x is not None for x in given):
            raise ValueError("turns and key_turns would have no effect: rotary is None")

    def _needed(self, turns: Tensor | None) -> Tensor:
        if turns is None:
            raise ValueError("with rotary this needs turns: its rows for the positions of the queries")
        return turns

    def _eps(self) -> float:
        """The length under which vectors normalise to zero."""
        for norm in (self.q_norm, self.v_norm):
            if isinstance(norm, L2Norm):
                return norm.eps
        return 0.0

    def _batch_first(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T, E) each, the same object where the caller passed the same object."""
        for name, x in (("query", query), ("key", key), ("value", value)):
            if x.dim() != query.dim() or x.dim() not in (2, 3):
                raise ValueError(
                    f"query, key and value must all be 3-D (batched) or all 2-D; {name} is {x.dim()}-D"
                )

        def turned(x: Tensor) -> Tensor:
            return x[None] if x.dim() == 2 else x if self.batch_first else x.transpose(0, 1)

        q = turned(query)
        k = q if key is query else turned(key)
        v = k if value is key else q if value is query else turned(value)
        return q, k, v

    def _heads(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cache: SelfCache | CrossCache | None,
        turns: Tensor | None,
        key_turns: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, int]:
        """q (B, H, T, D), k and v (B, H, S, D) as attention takes them; and how many keys came before."""
        if cache is not None and (self.bias_k is not None or self.add_zero_attn):
            raise ValueError("a cache does not go with add_bias_kv or add_zero_attn")
        if turns is not None:
            check_turns(turns, self.head_dim, query.size(1), query.size(0))
        if isinstance(cache, CrossCache) and cache.keys is not None and cache.values is not None:
            if query.size(0) != cache.keys.size(0):
                raise ValueError(
                    f"the cache holds {cache.keys.size(0)} sequences, query {query.size(0)}; "
                    "use reorder() when the batch changes"
                )
            q = self._normalized_query(self._project_query(query))
            if self.rotary is not None:
                q = turn(q, self._needed(turns).unsqueeze(-2))
            return q.transpose(1, 2), cache.keys, cache.values, 0
        if query.size(0) != key.size(0) or key.shape[:2] != value.shape[:2]:
            raise ValueError(
                "query, key and value must have one batch size, key and value one length; they have "
                f"{tuple(query.shape[:2])}, {tuple(key.shape[:2])}, {tuple(value.shape[:2])}"
            )
        q, k, v = self._projected_and_normalized(query, key, value)
        offset = cache.length if isinstance(cache, SelfCache) else 0
        if self.rotary is not None:
            q, k = self._turned(q, k, *self._turns(query, key, cache, turns, key_turns))
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if isinstance(cache, SelfCache):
            k, v = cache.append(k, v)
        elif isinstance(cache, CrossCache):
            cache.fill(k, v)
        return q, k, v, offset

    def extra_repr(self) -> str:
        g = "" if self.qk_scale is None else f", qk_scale_per={self.qk_scale_per!r}"
        return f"{self.embed_dim}, {self.num_heads}, qk_norm={self.qk_norm!r}{g}, dropout={self.dropout}"
