"""Text in, text out: the translator that ``qknorm translate`` and Python share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from qknorm.config import DecodingSettings
from qknorm.data import Subwords
from qknorm.errors import UserError
from qknorm.model import Transformer
from qknorm.run import Run
from qknorm.translation.beam import beam_search, shared_search
from qknorm.translation.forced import force_score
from qknorm.translation.hypothesis import Hypothesis, SearchSettings
from qknorm.workers import Workers

CHUNK = 1024
"""Lines translated at a time; what is held in memory does not grow with the input."""


@dataclass(frozen=True)
class Translation:
    """One translation of a line."""

    text: str
    score: float
    """Log-probability over the length factor, which translations are ranked by."""
    log_prob: float
    pieces: list[str]
    """Its subwords, for display."""
    ids: list[int]
    """Their ids, without EOS."""
    attention: Tensor | None = None
    """(layers, heads, target, source) cross-attention, the ends of sentence included, if asked for."""


class Translator:
    """A trained model, or an ensemble of several, with its subwords and how it searches.

    translator = Translator.load("runs/gl-en")
    translator(["unha frase"])
    """

    def __init__(self, models: Sequence[Transformer], subwords: Subwords, decoding: DecodingSettings) -> None:
        self.models = list(models)
        self.subwords = subwords
        self.decoding = decoding

    @classmethod
    def load(
        cls,
        run: str | Path | Sequence[str | Path],
        device: torch.device | str | None = None,
        which: str = "best",
        dtype: torch.dtype = torch.float32,
        together: bool = True,
    ) -> Translator:
        """From one run folder, or several of the same subwords: their probabilities are averaged.

        Of a run with several models (``training.members``) all take part, or with ``together=False`` the
        first. In another ``dtype``, bfloat16 for speed on a GPU, weights are rounded and some translations
        differ.
        """
        runs = [Run.open(path) for path in ([run] if isinstance(run, str | Path) else run)]
        if not runs:
            raise UserError("Name at least one run folder to translate with.")
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        subwords = runs[0].subwords()
        for other in runs[1:]:
            if other.subwords().fingerprint != subwords.fingerprint:
                raise UserError(
                    f"{other.path} and {runs[0].path} have different subwords and cannot translate together; "
                    "train them from the same files with the same subwords settings."
                )
        found = [each.models(which, device) if together else [each.model(which, device)] for each in runs]
        models = [model.to(dtype) for each in found for model in each]
        return cls(models, subwords, runs[0].decoding())

    def __call__(
        self,
        lines: Iterable[str],
        beam: int | None = None,
        length_penalty: float | None = None,
        batch_tokens: int | None = None,
    ) -> list[str]:
        """A translation of each line; blank lines come back empty."""
        search = self._search(beam, length_penalty, 1, batch_tokens)
        return [found[0].text if found else "" for found in self._stream(chunks(lines, CHUNK), search, False)]

    def stream(
        self,
        lines: Iterable[str],
        beam: int | None = None,
        length_penalty: float | None = None,
        nbest: int = 1,
        batch_tokens: int | None = None,
        attention: bool = False,
        workers: Workers | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Iterator[list[Translation]]:
        """The ``nbest`` translations of each line, best first, as they are done; none of a blank line.

        Several ``workers`` share out the lines, and each gets all translations; attention goes with one.
        ``progress`` is called with the number of lines done, also of those that others still hold back;
        with several workers only when all have done their share.
        """
        search = self._search(beam, length_penalty, nbest, batch_tokens)
        size = 1 if workers is None else workers.size
        return self._stream(chunks(lines, CHUNK * size), search, attention, workers, progress)

    def stream_groups(
        self,
        groups: Iterable[Sequence[str]],
        beam: int | None = None,
        length_penalty: float | None = None,
        nbest: int = 1,
        batch_tokens: int | None = None,
    ) -> Iterator[list[Translation]]:
        """As ``stream``, of lines that come in groups: all of one are given before the next is asked for."""
        return self._stream(groups, self._search(beam, length_penalty, nbest, batch_tokens), False)

    def score(self, sources: Sequence[str], translations: Sequence[str]) -> list[float]:
        """The log-probability of given translations."""
        encoded = self.subwords.encode(sources, "source"), self.subwords.encode(translations, "target")
        return [each.log_prob for each in force_score(self.models, *encoded)]

    def _search(
        self, beam: int | None, length_penalty: float | None, nbest: int, batch_tokens: int | None
    ) -> SearchSettings:
        set_by = self.decoding
        try:
            return SearchSettings(
                beam=set_by.beam if beam is None else beam,
                length_penalty=set_by.length_penalty if length_penalty is None else length_penalty,
                max_extra=set_by.max_extra,
                nbest=nbest,
                batch_tokens=set_by.batch_tokens if batch_tokens is None else batch_tokens,
            )
        except ValueError as error:
            raise UserError(f"{error}.") from error

    def _stream(
        self,
        groups: Iterable[Sequence[str]],
        search: SearchSettings,
        attention: bool,
        workers: Workers | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Iterator[list[Translation]]:
        before = 0  # lines of earlier groups

        def tell(done: int, _: int) -> None:
            if progress is not None:
                progress(before + done)

        for group in groups:
            sources = self.subwords.encode(["" if not line.strip() else line for line in group], "source")
            if workers is None or workers.size == 1:
                found = beam_search(self.models, sources, search, need_weights=attention, progress=tell)
            else:
                found = shared_search(workers, self.models, sources, search)
            tell(len(group), len(group))
            before += len(group)
            for source, hypotheses in zip(sources, found, strict=True):
                yield self._texts(hypotheses) if source else []

    def _texts(self, hypotheses: list[Hypothesis]) -> list[Translation]:
        texts = self.subwords.decode([h.ids for h in hypotheses])
        return [
            Translation(text, h.score, h.log_prob, self.subwords.pieces(h.ids), h.ids, h.attention)
            for text, h in zip(texts, hypotheses, strict=True)
        ]


def chunks(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    """Lines in lists of ``size``, the last one of what is left."""
    waiting = iter(lines)
    while chunk := list(islice(waiting, size)):
        yield chunk
