"""Corpora, subwords and batches: from text files to arrays of ids."""

from qknorm.data.batches import Batch, Batches, SourceBatch, for_translation
from qknorm.data.check import CorpusReport, check_corpus
from qknorm.data.dropout import BpeDropout
from qknorm.data.encoded import CorpusFacts, EncodedCorpus
from qknorm.data.sentences import EncodedPairs, Sentences, Side
from qknorm.data.stream import line_groups
from qknorm.data.subwords import Subwords
from qknorm.data.text import lines, pairs, write_atomic

__all__ = [
    "Batch",
    "Batches",
    "BpeDropout",
    "CorpusFacts",
    "CorpusReport",
    "EncodedCorpus",
    "EncodedPairs",
    "Sentences",
    "Side",
    "SourceBatch",
    "Subwords",
    "check_corpus",
    "for_translation",
    "line_groups",
    "lines",
    "pairs",
    "write_atomic",
]
