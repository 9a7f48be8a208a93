"""The weights of attention: what takes inputs to normalised heads, and heads to outputs.

Axes: E model width, H heads, D = E / H width of one head.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qknorm.nn.functional import initial_scale
from qknorm.nn.heads import normalized_heads
from qknorm.nn.norms import L2Norm, make_qk_norm
from qknorm.nn.positions import RotaryPositions, turn

QK_SCALE_PER = ("layer", "head")
DEFAULT_LENGTH = 64
"""The length g starts from when neither ``qk_scale_init`` nor ``length`` is given: log2(64² − 64) = 11.98."""


class Projections(nn.Module):
    """Projections, norms and g of ``MultiheadAttention``, which says what the arguments mean."""

    in_proj_weight: nn.Parameter | None
    q_proj_weight: nn.Parameter | None
    k_proj_weight: nn.Parameter | None
    v_proj_weight: nn.Parameter | None
    in_proj_bias: nn.Parameter | None
    bias_k: nn.Parameter | None
    bias_v: nn.Parameter | None
    qk_scale: Tensor | None
    rotary: RotaryPositions | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        bias: bool,
        add_bias_kv: bool,
        add_zero_attn: bool,
        kdim: int | None,
        vdim: int | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        qk_norm: str | None,
        qk_scale_init: float | None,
        length: float | None,
        qk_scale_per: str,
        qk_scale_learnable: bool | None,
        v_norm: bool,
        rotary: RotaryPositions | None,
    ) -> None:
        super().__init__()
        _check_sizes(embed_dim, num_heads)
        factory: dict[str, object] = {"device": device, "dtype": dtype}
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.add_zero_attn = add_zero_attn

        # The names, shapes and initial values of torch.nn.MultiheadAttention, drawn in its order.
        one_matrix = self.kdim == embed_dim and self.vdim == embed_dim

        def weight(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*shape, device=device, dtype=dtype))

        self.register_parameter("in_proj_weight", weight(3 * embed_dim, embed_dim) if one_matrix else None)
        for name, width in (("q", embed_dim), ("k", self.kdim), ("v", self.vdim)):
            self.register_parameter(f"{name}_proj_weight", None if one_matrix else weight(embed_dim, width))
        self.register_parameter("in_proj_bias", weight(3 * embed_dim) if bias else None)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)
        self.register_parameter("bias_k", weight(1, 1, embed_dim) if add_bias_kv else None)
        self.register_parameter("bias_v", weight(1, 1, embed_dim) if add_bias_kv else None)
        self._set_up_norm(qk_norm, qk_scale_init, length, qk_scale_per, qk_scale_learnable, v_norm, factory)
        self._set_up_rotary(rotary, add_bias_kv or add_zero_attn)
        self.reset_parameters()

    def _set_up_norm(
        self,
        qk_norm: str | None,
        qk_scale_init: float | None,
        length: float | None,
        qk_scale_per: str,
        qk_scale_learnable: bool | None,
        v_norm: bool,
        factory: dict[str, object],
    ) -> None:
        if not isinstance(v_norm, bool):
            raise ValueError(f"v_norm must be True or False, not {v_norm!r}")
        if qk_scale_per not in QK_SCALE_PER:
            raise ValueError(f"qk_scale_per must be 'layer' or 'head', not {qk_scale_per!r}")
        self.qk_norm = qk_norm
        self.qk_scale_per = qk_scale_per
        self.v_norm = L2Norm() if v_norm else None
        self.q_norm: nn.Module | None = None
        self.k_norm: nn.Module | None = None
        if qk_norm is None:
            given = {
                "qk_scale_init": qk_scale_init,
                "length": length,
                "qk_scale_learnable": qk_scale_learnable,
            }
            unused = [name for name, value in given.items() if value is not None]
            if unused:
                raise ValueError(f"{' and '.join(unused)} would have no effect: qk_norm is None")
            self._qk_scale_start = 1.0
            self.register_parameter("qk_scale", None)
            return
        self.q_norm = make_qk_norm(qk_norm, self.head_dim, self.num_heads, **factory)  # type: ignore[arg-type]
        self.k_norm = make_qk_norm(qk_norm, self.head_dim, self.num_heads, **factory)  # type: ignore[arg-type]
        self._qk_scale_start = _scale_start(qk_norm, self.head_dim, qk_scale_init, length)
        shape = (self.num_heads,) if qk_scale_per == "head" else (1,)
        scale = torch.empty(shape, **factory)  # type: ignore[call-overload]
        if qk_norm == "l2" if qk_scale_learnable is None else qk_scale_learnable:
            self.qk_scale = nn.Parameter(scale)
        else:
            self.register_buffer("qk_scale", scale)

    def _set_up_rotary(self, rotary: RotaryPositions | None, appends: bool) -> None:
        self.rotary = rotary
        if rotary is None:
            return
        if not isinstance(rotary, RotaryPositions):
            raise ValueError(f"rotary must be RotaryPositions or None, not {rotary!r}")
        if rotary.width != self.head_dim:
            raise ValueError(
                f"rotary turns heads of width {rotary.width}, but those here are {self.head_dim} wide"
            )
        if appends:
            raise ValueError("rotary does not go with add_bias_kv or add_zero_attn, whose keys stand nowhere")

    def reset_parameters(self) -> None:
        """Draw the weights anew, as ``torch.nn.MultiheadAttention`` does, and put g back to its start."""
        for name in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
            matrix = getattr(self, name)
            if matrix is not None:
                nn.init.xavier_uniform_(matrix)
        if self.in_proj_bias is not None:
            nn.init.zeros_(self.in_proj_bias)
            nn.init.zeros_(self.out_proj.bias)
        for learned in (self.bias_k, self.bias_v):
            if learned is not None:
                nn.init.xavier_normal_(learned)
        if self.qk_scale is not None:
            with torch.no_grad():
                self.qk_scale.fill_(self._qk_scale_start)

    def _projected_and_normalized(
        self, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(…, E) inputs to (…, H, D) queries, keys and values as attention takes them."""
        if query is key is value and self.in_proj_weight is not None and self._normalizes_jointly():
            qkv, _ = self._project_side_by_side(query, key)
            assert self.qk_scale is not None and isinstance(self.q_norm, L2Norm)
            q, k, v = normalized_heads(qkv, self.qk_scale, self.q_norm.eps)
            return q, k, v if self.v_norm is None else self.v_norm(v)
        q, k, v = self._project(query, key, value)
        if self.bias_k is not None and self.bias_v is not None:
            k = torch.cat([k, self.bias_k.view(1, 1, *k.shape[2:]).expand(k.size(0), -1, -1, -1)], dim=1)
            v = torch.cat([v, self.bias_v.view(1, 1, *v.shape[2:]).expand(v.size(0), -1, -1, -1)], dim=1)
        if self.add_zero_attn:
            k, v = F.pad(k, (0, 0, 0, 0, 0, 1)), F.pad(v, (0, 0, 0, 0, 0, 1))
        return self._normalized(q, k, v)

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(…, E) inputs to (…, H, D) queries, keys and values, with as few products as the inputs allow."""
        w, b = self.in_proj_weight, self.in_proj_bias
        if w is not None and key is value:
            q, kv = self._project_side_by_side(query, key)
            if kv is None:
                q, k, v = q.chunk(3, dim=-2)
                return q, k, v
            k, v = kv.chunk(2, dim=-2)
            return q, k, v
        self._check_widths(query, key, value)
        _, w_k, w_v = (
            (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight) if w is None else w.chunk(3)
        )
        assert w_k is not None and w_v is not None
        _, b_k, b_v = (None, None, None) if b is None else b.chunk(3)
        k, v = F.linear(key, w_k, b_k), F.linear(value, w_v, b_v)
        return self._project_query(query), self._split(k), self._split(v)

    def _project_side_by_side(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor | None]:
        """Queries, keys and values, (…, 3H, D), of one input; or queries and (…, 2H, D) keys and values."""
        self._check_widths(query, key, key)
        E, w, b = self.embed_dim, self.in_proj_weight, self.in_proj_bias
        assert w is not None
        if query is key:
            return self._split(F.linear(query, w, b)), None
        kv = F.linear(key, w[E:], None if b is None else b[E:])
        return self._project_query(query), self._split(kv)

    def _check_widths(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        E = self.embed_dim
        for name, x, width in (("query", query, E), ("key", key, self.kdim), ("value", value, self.vdim)):
            if x.size(-1) != width:
                raise ValueError(f"{name} must have width {width}, not {x.size(-1)}")

    def _project_query(self, query: Tensor) -> Tensor:
        E, b = self.embed_dim, self.in_proj_bias
        w = self.q_proj_weight if self.in_proj_weight is None else self.in_proj_weight[:E]
        assert w is not None
        return self._split(F.linear(query, w, None if b is None else b[:E]))

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], x.size(-1) // self.head_dim, self.head_dim)  # (…, H, D)

    def _turned(
        self, q: Tensor, k: Tensor, turns: Tensor, of_keys: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys (…, positions, H, D) turned by their positions' rows of ``rotary``."""
        of_keys = turns if of_keys is None else of_keys
        return turn(q, turns.unsqueeze(-2)), turn(k, of_keys.unsqueeze(-2))

    def _normalizes_jointly(self) -> bool:
        """Whether queries and keys of one product have the same plain l2 norm and nothing between."""
        return (
            self.bias_k is None
            and not self.add_zero_attn
            and type(self.q_norm) is type(self.k_norm) is L2Norm
            and self.q_norm.eps == self.k_norm.eps
        )

    def _normalized(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Equation (2) on queries and keys, g multiplied into the queries."""
        q = self._normalized_query(q)
        if self.k_norm is not None:
            k = self._per_head_or_across(self.k_norm, k)
        if self.v_norm is not None:
            v = self.v_norm(v)
        return q, k, v

    def _normalized_query(self, q: Tensor) -> Tensor:
        if self.q_norm is None or self.qk_scale is None:
            return q
        g = self.qk_scale.unsqueeze(-1)  # (1 or H, 1) against (…, H, D)
        if isinstance(self.q_norm, L2Norm):
            return self.q_norm(q, g)  # type: ignore[no-any-return]
        return (self._per_head_or_across(self.q_norm, q) * g).to(q.dtype)

    def _per_head_or_across(self, norm: nn.Module, x: Tensor) -> Tensor:
        if self.qk_norm == "rms_across_heads":
            return self._split(norm(x.flatten(-2)))
        return norm(x)  # type: ignore[no-any-return]

    def _fixed_scale(self) -> float:
        """What is left to multiply the logits by: nothing once g is in the queries, else 1/√D."""
        return 1.0 if self.qk_scale is not None else 1.0 / math.sqrt(self.head_dim)


def _scale_start(qk_norm: str, head_dim: int, qk_scale_init: float | None, length: float | None) -> float:
    if qk_scale_init is not None and length is not None:
        raise ValueError("give qk_scale_init or length, not both: each says where g starts")
    if qk_scale_init is not None:
        if not math.isfinite(qk_scale_init):
            raise ValueError(f"qk_scale_init must be a finite number, not {qk_scale_init!r}")
        return float(qk_scale_init)
    if qk_norm == "l2":
        return initial_scale(DEFAULT_LENGTH if length is None else length)
    return 1.0 / math.sqrt(head_dim) if length is None else initial_scale(length) / head_dim


def _check_sizes(embed_dim: int, num_heads: int) -> None:
    if embed_dim <= 0 or num_heads <= 0:
        raise ValueError(f"embed_dim and num_heads must be positive, not {embed_dim} and {num_heads}")
    if embed_dim % num_heads:
        raise ValueError(f"num_heads must divide embed_dim: {embed_dim} is not a multiple of {num_heads}")
