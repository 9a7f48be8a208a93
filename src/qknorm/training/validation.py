"""How good the model is now: dev perplexity and BLEU, by the same code as ``translate`` and ``score``."""

from __future__ import annotations

import math
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
    corpus, subwords = prepared.encoded[split], prepared.subwords
    pairs = [corpus[i] for i in range(len(corpus))]
    sources, targets = [source.tolist() for source, _ in pairs], [target.tolist() for _, target in pairs]
    costs = [len(source) + len(target) + 2 for source, target in zip(sources, targets, strict=True)]

    def log_probs(mine: list[int]) -> list[tuple[float, int]]:
        forced = force_score(model, [sources[i] for i in mine], [targets[i] for i in mine])
        return [(score.log_prob, len(score.token_log_probs)) for score in forced]

    forced = workers.divide(costs, log_probs)
    tokens = sum(count for _, count in forced)
    perplexity = math.exp(min(-math.fsum(log_prob for log_prob, _ in forced) / max(tokens, 1), 700.0))
    some = range(0, len(pairs), -(-len(pairs) // LOGIT_SENTENCES))  # the same for every process
    logits = largest_logits(model, [sources[i] for i in some], [targets[i] for i in some])
    max_logit = max(logits.values())
    if not with_bleu:
        return Validation(perplexity, None, None, max_logit)
    search = search_settings(prepared.recipe.decoding)

    def translations(mine: list[int]) -> list[list[int]]:
        with progress.bar(f"translating {split}", len(mine)) as bar:
            found = beam_search(
                model, [sources[i] for i in mine], search, progress=lambda done, _: bar.to(done)
            )
        return [nbest[0].ids if nbest else [] for nbest in found]

    hypotheses = subwords.decode(workers.divide(costs, translations))
    return Validation(perplexity, bleu(hypotheses, references, subwords.kind), hypotheses, max_logit)
