"""Every setting of the Transformer, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qknorm.nn.norms import NORMS, QK_NORMS

NORM_POSITIONS = ("pre", "post")
POSITIONS = ("cosine", "sine")


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The encoder-decoder Transformer; the defaults are the paper's base model with QKNorm."""

    d_model: int = 512
    """Width of the model; ``heads`` must divide it."""
    d_ff: int = 2048
    """Width inside the feed-forward sublayers."""
    heads: int = 8
    """Attention heads in every attention module."""
    encoder_layers: int = 6
    """Layers of the encoder."""
    decoder_layers: int = 6
    """Layers of the decoder."""

    norm: Literal["layer", "scale", "rms", "none"] = "layer"
    """Norm of the sublayers: LayerNorm, ScaleNorm, RMSNorm or none."""
    norm_position: Literal["pre", "post"] = "pre"
    """PreNorm (and one more norm at the end of each stack) or PostNorm."""
    fix_norm: bool = True
    """FixNorm: word embeddings of unit length at every use."""

    qk_norm: Literal["l2", "rms", "layer", "rms_across_heads"] | None = "l2"
    """Norm of queries and keys: the paper's l2, another, or none for scaled dot product attention."""
    qk_scale_init: float | None = None
    """Where g starts; without it, log2(L² − L) from ``length``."""
    length: float | None = None
    """L, a typical long sentence in subwords; not set: ``length_percentile`` of the training sentences."""
    length_percentile: float = 97.5
    """Which percentile of the lengths of all training sentences L is; 100 is the longest."""
    qk_scale_per: Literal["layer", "head"] = "layer"
    """One g for each attention module, or one for each of its heads."""
    qk_scale_learnable: bool | None = None
    """Whether g is learned; not set: yes with l2, no with the other norms."""
    v_norm: bool = False
    """Also l2-normalise the values (an ablation of the paper)."""

    dropout: float = 0.3
    """On the summed embeddings and on the output of every sublayer."""
    attention_dropout: float = 0.3
    """On the attention weights."""
    ff_dropout: float = 0.3
    """Inside the feed-forward sublayers, after the ReLU."""
    word_dropout: float = 0.1
    """Chance that a subword is replaced by UNK while training, on both sides."""

    languages: int = 2
    """Language embeddings added to the input: source 0, target 1 of a pair; 0 for none."""
    positions: Literal["cosine", "sine"] = "cosine"
    """Sinusoid positions with cosine in the odd dimensions, or sine there too as in the paper's code."""
    rotary: bool = False
    """Also turn queries and keys of self-attention by their positions, so that logits know distances."""

    def __post_init__(self) -> None:
        for name in ("d_model", "d_ff", "heads", "encoder_layers", "decoder_layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.d_model % self.heads:
            raise ValueError(f"heads must divide d_model: {self.d_model} is not a multiple of {self.heads}")
        if self.d_model % 2:
            raise ValueError(f"d_model must be even (sinusoid positions come in pairs), not {self.d_model}")
        if self.rotary and self.d_model // self.heads % 2:
            raise ValueError(
                f"rotary needs heads of even width: d_model {self.d_model} over {self.heads} heads is "
                f"{self.d_model // self.heads}"
            )
        if self.languages < 0:
            raise ValueError(f"languages must be at least 0, not {self.languages}")
        for name in ("dropout", "attention_dropout", "ff_dropout", "word_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} must be at least 0 and below 1, not {getattr(self, name)}")
        if not 0.0 < self.length_percentile <= 100.0:
            raise ValueError(
                f"length_percentile must be above 0 and at most 100, not {self.length_percentile}"
            )
        for name, allowed in (
            ("norm", NORMS),
            ("norm_position", NORM_POSITIONS),
            ("qk_norm", (None, *QK_NORMS)),
            ("qk_scale_per", ("layer", "head")),
            ("positions", POSITIONS),
        ):
            if getattr(self, name) not in allowed:
                listed = ", ".join(repr(value) for value in allowed)
                raise ValueError(f"{name} must be one of {listed}, not {getattr(self, name)!r}")
