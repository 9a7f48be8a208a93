"""How good the model is now: dev perplexity and BLEU, by the same code as ``translate`` and ``score``."""

from __future__ import annotations

import math
from dataclasses import dataclass

from qknorm.config import DecodingSettings
from qknorm.model import Transformer
from qknorm.progress import Progress
from qknorm.scoring import bleu
from qknorm.training.preparation import Prepared
from qknorm.translation import SearchSettings, beam_search, force_score


@dataclass(frozen=True)
class Validation:
    perplexity: float
    bleu: float | None
    hypotheses: list[str] | None


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
    with_bleu: bool = True,
) -> Validation:
    """Perplexity per subword (EOS counted) of the references, and BLEU of the model's own translations."""
    corpus, subwords = prepared.encoded[split], prepared.subwords
    pairs = [corpus[i] for i in range(len(corpus))]
    sources, targets = [source.tolist() for source, _ in pairs], [target.tolist() for _, target in pairs]
    forced = force_score(model, sources, targets)
    tokens = sum(len(score.token_log_probs) for score in forced)
    perplexity = math.exp(min(-math.fsum(score.log_prob for score in forced) / max(tokens, 1), 700.0))
    if not with_bleu:
        return Validation(perplexity, None, None)
    search = search_settings(prepared.recipe.decoding)
    with progress.bar(f"translating {split}", len(sources)) as bar:
        found = beam_search(model, sources, search, progress=lambda done, _: bar.to(done))
    hypotheses = subwords.decode([nbest[0].ids if nbest else [] for nbest in found])
    return Validation(perplexity, bleu(hypotheses, references, subwords.kind), hypotheses)
