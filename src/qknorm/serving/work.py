"""The work of the server: sentences to translate, and what is found for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from qknorm.analysis import pair_attention
from qknorm.analysis.maps import END, Words
from qknorm.data import Subwords
from qknorm.serving.served import Served
from qknorm.translation.translator import Translation


@dataclass(eq=False)
class Job:
    """One sentence to translate, and where its answer goes."""

    served: Served
    line: str
    length: int
    """Its subwords; none of a job is blank."""
    beam: int
    nbest: int
    attention: bool
    weights: int
    """The most attention weights to send with it."""
    answer: asyncio.Future[bytes] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def kind(self) -> tuple[str, int, int]:
        """Jobs of one kind can be searched together."""
        return self.served.name, self.beam, self.nbest

    @property
    def cost(self) -> int:
        """Memory it takes in a batch, as the search counts it: beam × (source + longest translation)."""
        return self.beam * (self.length + 1 + self.length + self.served.translator.decoding.max_extra)


def translate_jobs(jobs: Sequence[Job]) -> list[bytes]:
    """The answer to each of the jobs, which are of one kind: a ``schema.Sentence`` as JSON.

    Written out at once: a million weights are 7 MB as text, and five times that as Python's numbers.
    """
    first = jobs[0]
    bound = len(jobs) * max(job.cost for job in jobs)  # all in one batch of the search
    found = first.served.translator.stream(
        [job.line for job in jobs], beam=first.beam, nbest=first.nbest, batch_tokens=bound
    )
    return [to_json(_sentence(job, translations)) for job, translations in zip(jobs, found, strict=True)]


def blank() -> bytes:
    """The answer to a blank sentence."""
    return to_json({"text": "", "translations": [], "note": None})


def to_json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def _sentence(job: Job, translations: list[Translation]) -> dict[str, Any]:
    candidates: list[dict[str, Any]] = [
        {"text": each.text, "score": each.score, "log_prob": each.log_prob, "attention": None}
        for each in translations
    ]
    note = None
    if job.attention:
        maps, note = _attention(job, translations)
        for candidate, weights in zip(candidates, maps, strict=False):
            candidate["attention"] = weights
    return {"text": translations[0].text, "translations": candidates, "note": note}


def _attention(job: Job, translations: list[Translation]) -> tuple[list[dict[str, Any]], str | None]:
    """The word-level maps of the translations, best first, as many as fit; and a note if not all do."""
    translator, about = job.served.translator, job.served.about
    (source,) = translator.subwords.encode([job.line], "source")
    room = job.weights // (about.decoder_layers * about.heads * (len(source) + 1))
    fitting = []
    for each in translations:
        room -= len(each.ids) + 1
        if room < 0:
            break
        fitting.append(each.ids)
    seen = pair_attention(translator.models[0], translator.subwords, [source] * len(fitting), fitting)
    note = None
    if len(fitting) < len(translations):
        note = (
            f"Attention is given with the first {len(fitting)} of {len(translations)} translations: "
            f"with all, there would be more than {job.weights:,} weights."
        )
    words = _source_words(job, translator.subwords)
    maps = [replace(each.cross, column_words=words or each.cross.column_words) for each in seen]
    told = [each.words().to_json() for each in maps]
    return [{"source": m["columns"], "target": m["rows"], "weights": m["weights"]} for m in told], note


def _source_words(job: Job, subwords: Subwords) -> Words | None:
    """The words of tokenised text as they were sent, where their subwords would say ``<unk>``."""
    if subwords.kind != "words":
        return None
    words = subwords.words(job.line)
    sizes = [len(ids) for ids in subwords.encode(words, "source")]
    numbers = [number for number, size in enumerate([*sizes, 1]) for _ in range(size)]
    return Words([*words, END], numbers)
