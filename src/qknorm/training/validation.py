"""How good the model is now: dev perplexity and BLEU, by the same code as ``translate`` and ``score``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from qknorm.config import DecodingSettings
from qknorm.model import Transformer
from qknorm.progress import Progress
from qknorm.scoring import bleu
from qknorm.training.preparation import Prepared
from qknorm.translation import SearchSettings, beam_search, force_score, largest_logits
from qknorm.workers import Workers

LOGIT_SENTENCES = 128
"""Pairs, spread over the text, over which the largest logit is taken."""


@dataclass(frozen=True)
class Validation:
    perplexity: float
    bleu: float | None
    hypotheses: list[str] | None
    max_logit: float
    """The largest |logit| of any attention module on some of the references."""


def search_settings(decoding: DecodingSettings) -> SearchSettings:
    return SearchSettings(
        beam=decoding.beam,
        length_penalty=decoding.length_penalty,
        max_extra=decoding.max_extra,
        batch_tokens=decoding.batch_tokens,
    )


def validate(
    model: Transformer,
    prepared: Prepared,
    split: str,
    references: list[str],
    progress: Progress,
    workers: Workers,
    with_bleu: bool = True,
) -> Validation:
    """Perplexity per subword (EOS counted) of the references, and BLEU of the model's own translations.

    The processes share out the sentences, and all come to the same result.
    """
    sources, targets, costs = _sentences(prepared, split)

    def log_probs(mine: list[int]) -> list[tuple[float, int]]:
        forced = force_score(model, [sources[i] for i in mine], [targets[i] for i in mine])
        return [(score.log_prob, len(score.token_log_probs)) for score in forced]

    forced = workers.divide(costs, log_probs)
    tokens = sum(count for _, count in forced)
    perplexity = math.exp(min(-math.fsum(log_prob for log_prob, _ in forced) / max(tokens, 1), 700.0))
    some = range(0, len(sources), -(-len(sources) // LOGIT_SENTENCES))  # the same for every process
    logits = largest_logits(model, [sources[i] for i in some], [targets[i] for i in some])
    max_logit = max(logits.values())
    if not with_bleu:
        return Validation(perplexity, None, None, max_logit)
    hypotheses = translations(model, prepared, split, progress, workers)
    score = bleu(hypotheses, references, prepared.subwords.kind)
    return Validation(perplexity, score, hypotheses, max_logit)


def translations(
    models: Transformer | Sequence[Transformer],
    prepared: Prepared,
    split: str,
    progress: Progress,
    workers: Workers,
) -> list[str]:
    """Translations of a split, by all processes together; each gets all of them."""
    sources, _, costs = _sentences(prepared, split)
    search = search_settings(prepared.recipe.decoding)

    def ids(mine: list[int]) -> list[list[int]]:
        with progress.bar(f"translating {split}", len(mine)) as bar:
            found = beam_search(
                models, [sources[i] for i in mine], search, progress=lambda done, _: bar.to(done)
            )
        return [nbest[0].ids if nbest else [] for nbest in found]

    return prepared.subwords.decode(workers.divide(costs, ids))


def _sentences(prepared: Prepared, split: str) -> tuple[list[list[int]], list[list[int]], list[int]]:
    """The ids of each source and each target, and what a pair costs."""
    corpus = prepared.encoded[split]
    sources = [corpus.source[i].tolist() for i in range(len(corpus))]
    targets = [corpus.target[i].tolist() for i in range(len(corpus))]
    return sources, targets, [len(s) + len(t) + 2 for s, t in zip(sources, targets, strict=True)]
