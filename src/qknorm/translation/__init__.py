"""From source ids to target ids: beam search, forced decoding, cross-attention."""

from qknorm.translation.attention import cross_attention
from qknorm.translation.beam import beam_search
from qknorm.translation.forced import ForcedScore, force_score
from qknorm.translation.hypothesis import Hypothesis, SearchSettings
from qknorm.translation.logits import largest_logits

__all__ = [
    "ForcedScore",
    "Hypothesis",
    "SearchSettings",
    "beam_search",
    "cross_attention",
    "force_score",
    "largest_logits",
]
