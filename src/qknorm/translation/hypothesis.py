"""What a search finds, and how long a translation may be and what its length is worth."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """How to search for translations; the defaults are the paper's."""

    beam: int = 4
    """Hypotheses of a sentence kept at every step; 1 is greedy search."""
    length_penalty: float = 0.6
    """α: a hypothesis of n subwords, its EOS counted, scores log p / ((5 + n) / 6)^α."""
    max_extra: int = 50
    """A translation has at most this many subwords more than its source, its EOS counted."""
    nbest: int = 1
    """Translations to return of each sentence; at most ``beam``."""
    batch_tokens: int = 32768
    """Bound on memory: sentences × beam × longest (source + target) of a batch; on a GPU 8 times as much."""

    def __post_init__(self) -> None:
        for name in ("beam", "nbest", "batch_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.max_extra < 0:
            raise ValueError(f"max_extra must be at least 0, not {self.max_extra}")
        if self.nbest > self.beam:
            raise ValueError(f"nbest must be at most beam ({self.beam}), not {self.nbest}")

    def length_factor(self, n: int) -> float:
        """((5 + n) / 6)^α, by which the log-probability of n subwords is divided (Wu et al. 2016)."""
        return float(((5 + n) / 6) ** self.length_penalty)


@dataclass(frozen=True)
class Hypothesis:
    """One translation of a sentence."""

    ids: list[int]
    """Its subwords, without the EOS."""
    score: float
    """The log-probability over the length factor; hypotheses are ranked by it."""
    log_prob: float
    """The natural logarithm of its probability, its EOS included if it is finished."""
    finished: bool = True
    """Whether it ended with EOS, or was cut at the greatest length."""
    attention: Tensor | None = None
    """(layers, heads, target, source) cross-attention weights, EOS included on both sides, if asked for."""


@dataclass
class Finished:
    """The best finished hypotheses of one sentence, as many as the beam, best first."""

    settings: SearchSettings
    limit: int
    best: list[Hypothesis] = field(default_factory=list)

    def add(self, ids: list[int], log_prob: float) -> None:
        """Take a hypothesis that ended with EOS, or drop it where it is worse than a full beam of others."""
        score = log_prob / self.settings.length_factor(len(ids) + 1)
        insort(self.best, Hypothesis(ids, score, log_prob), key=lambda h: -h.score)  # ties: found first
        del self.best[self.settings.beam :]

    def settled(self, live: float, n: int) -> bool:
        """Whether the search is over, when the best live hypothesis has n subwords and this log-probability.

        It is when no live hypothesis could ever displace one of the ``nbest``, whatever its length; or
        when ``beam`` have finished and, at the present length, none live is better than the worst of them.
        """
        if n >= self.limit or live == float("-inf"):
            return True
        of = self.settings
        if len(self.best) < of.nbest:
            return False
        bound = live / max(of.length_factor(n + 1), of.length_factor(self.limit))  # log p only falls
        if bound <= self.best[of.nbest - 1].score:
            return True
        return len(self.best) == of.beam and live / of.length_factor(n) <= self.best[-1].score
