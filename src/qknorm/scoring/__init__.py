"""How good translations are, and whether one system is better than another: sacrebleu, the paper's way."""

from qknorm.scoring.comparison import Change, Comparison, Difference, compare
from qknorm.scoring.detokenizer import detokenize
from qknorm.scoring.intervals import intervals
from qknorm.scoring.metrics import Kind
from qknorm.scoring.render import render_comparison, render_scores
from qknorm.scoring.scores import Scores, bleu, score

__all__ = [
    "Change",
    "Comparison",
    "Difference",
    "Kind",
    "Scores",
    "bleu",
    "compare",
    "detokenize",
    "intervals",
    "render_comparison",
    "render_scores",
    "score",
]
