"""What the heads of a trained model attend to: maps of a sentence, measures over a corpus, a report."""

from qknorm.analysis.maps import AttentionMap, SentenceAttention, pair_attention, sentence_attention
from qknorm.analysis.weights import KINDS

__all__ = ["KINDS", "AttentionMap", "SentenceAttention", "pair_attention", "sentence_attention"]
