"""Query-key normalised attention and its companions, for any PyTorch model. Needs torch alone."""

from qknorm.nn.attention import MultiheadAttention
from qknorm.nn.cache import CrossCache, SelfCache
from qknorm.nn.convert import attention_modules, convert, from_x_transformers, to_rms
from qknorm.nn.diagnostics import AttentionStats, Observation, observe
from qknorm.nn.embedding import FixNormEmbedding, TiedEmbedding
from qknorm.nn.functional import initial_scale, l2_normalize, qk_norm_attention
from qknorm.nn.norms import L2Norm, ScaleNorm, make_norm, make_qk_norm
from qknorm.nn.packed import Packing, pack, packed_attention, unpack
from qknorm.nn.positions import RotaryPositions, SinusoidalPositions
from qknorm.nn.spans import Spans, find_spans

__all__ = [
    "AttentionStats",
    "CrossCache",
    "FixNormEmbedding",
    "L2Norm",
    "MultiheadAttention",
    "Observation",
    "Packing",
    "RotaryPositions",
    "ScaleNorm",
    "SelfCache",
    "SinusoidalPositions",
    "Spans",
    "TiedEmbedding",
    "attention_modules",
    "convert",
    "find_spans",
    "from_x_transformers",
    "initial_scale",
    "l2_normalize",
    "make_norm",
    "make_qk_norm",
    "observe",
    "pack",
    "packed_attention",
    "qk_norm_attention",
    "to_rms",
    "unpack",
]
