"""Beam search over batches of sentences, with one model or an ensemble.

Axes: B sentences of a batch, K hypotheses of a sentence, N their subwords so far, V subwords.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from qknorm.ids import BOS, EOS, PAD
from qknorm.model import Transformer
from qknorm.nn import MultiheadAttention
from qknorm.translation.attention import cross_attention
from qknorm.translation.batches import by_length, pad
from qknorm.translation.continuations import best_continuations
from qknorm.translation.ensemble import Ensemble, check_ids
from qknorm.translation.hypothesis import Finished, Hypothesis, SearchSettings
from qknorm.translation.static import TOKENS, search_of
from qknorm.workers import Workers


def beam_search(
    models: Transformer | Sequence[Transformer],
    sources: Sequence[Sequence[int]],
    settings: SearchSettings | None = None,
    *,
    need_weights: bool = False,
    progress: Callable[[int, int], None] | None = None,
    _static: bool | None = None,
) -> list[list[Hypothesis]]:
    """The ``nbest`` translations of every source, best first, in the order of the sources.

    A sentence with fewer finished hypotheses than ``nbest`` has fewer; one with none has its unfinished
    ones, cut at the greatest length. The translation of an empty source is empty. What is found for a
    sentence does not depend on the other sentences, apart from rounding.

    On a GPU one model is searched in slots of static shape, its step a replayed CUDA graph; what is found
    is the same. Ensembles, models under autocast or observed by ``qknorm.nn`` diagnostics, and very long
    sentences take the plain way.

    Args:
        models: one, or several of one vocabulary: the mean of their probabilities is searched.
        sources: the subword ids of each sentence, without EOS.
        settings: ``SearchSettings()`` is the paper's.
        need_weights: also give each hypothesis its cross-attention; for one model only.
        progress: called with the sentences done and all there are, whenever some are done.
    """
    settings = SearchSettings() if settings is None else settings
    ensemble = Ensemble(models)
    if need_weights and len(ensemble.models) > 1:
        raise ValueError("need_weights goes with one model: each model of an ensemble attends differently")
    check_ids("source", sources, ensemble.vocab_size)
    found = [[] if source else [Hypothesis([], 0.0, 0.0)] for source in sources]
    waiting = [i for i, source in enumerate(sources) if source]
    done = len(sources) - len(waiting)

    def settled(numbers: list[int], results: list[list[Hypothesis]]) -> None:
        nonlocal done
        for i, nbest in zip(numbers, results, strict=True):
            found[i] = nbest
        done += len(numbers)
        if progress is not None and numbers:
            progress(done, len(sources))

    with ensemble.evaluating():
        if _goes_static(ensemble) if _static is None else _static:
            model, search = ensemble.models[0], search_of(ensemble.models[0])
            numbers = [i for i in waiting if search.fits(model, sources[i], settings)]
            if numbers:
                search.search(
                    model,
                    [sources[i] for i in numbers],
                    settings,
                    ensemble.producible(),
                    lambda places, results: settled([numbers[place] for place in places], results),
                )
            waiting = sorted({*waiting} - {*numbers})
        _search_plainly(ensemble, sources, waiting, settings, settled)
    return _with_attention(ensemble.models[0], sources, found, settings) if need_weights else found


def _goes_static(ensemble: Ensemble) -> bool:
    """Whether the search can be a captured one."""
    model = ensemble.models[0]
    if len(ensemble.models) > 1 or ensemble.device.type != "cuda" or torch.is_autocast_enabled("cuda"):
        return False
    return not any(isinstance(m, MultiheadAttention) and m.observed for m in model.modules())


def _search_plainly(
    ensemble: Ensemble,
    sources: Sequence[Sequence[int]],
    waiting: list[int],
    settings: SearchSettings,
    settled: Callable[[list[int], list[list[Hypothesis]]], None],
) -> None:
    """Search for translations of the waiting ones of the sources, batch by batch."""
    budget = settings.batch_tokens * (TOKENS if ensemble.device.type == "cuda" else 1)

    def cost(count: int, longest: tuple[int, ...]) -> int:
        return count * settings.beam * (longest[0] + 1 + longest[0] + settings.max_extra)

    for batch in by_length([(len(sources[i]),) for i in waiting], cost, budget):
        members = [waiting[j] for j in batch]
        search = BatchSearch(ensemble, [sources[i] for i in members], settings)
        while search.places:
            over = search.step()
            settled([members[place] for place in over], list(over.values()))


def shared_search(
    workers: Workers,
    models: Transformer | Sequence[Transformer],
    sources: Sequence[Sequence[int]],
    settings: SearchSettings,
) -> list[list[Hypothesis]]:
    """``beam_search`` by several processes, each on its share of the sentences; all get all that is found."""

    def search(mine: list[int]) -> list[Any]:
        found = beam_search(models, [sources[i] for i in mine], settings)
        return [[(h.ids, h.score, h.log_prob, h.finished) for h in nbest] for nbest in found]

    shared = workers.divide([len(source) + 1 for source in sources], search)
    return [[Hypothesis(*fields) for fields in nbest] for nbest in shared]


def _with_attention(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    found: list[list[Hypothesis]],
    settings: SearchSettings,
) -> list[list[Hypothesis]]:
    """The same hypotheses with their cross-attention, computed anew for these.

    Carrying the weights of every live hypothesis through the search would take ``beam`` times the memory.
    """
    pairs = [(s, hypothesis.ids) for s, nbest in zip(sources, found, strict=True) for hypothesis in nbest]
    weights = cross_attention(
        model, [s for s, _ in pairs], [t for _, t in pairs], batch_tokens=settings.batch_tokens
    )
    each = iter(weights)
    return [
        [dataclasses.replace(hypothesis, attention=next(each)) for hypothesis in nbest] for nbest in found
    ]


class BatchSearch:
    """A beam search in progress over the sentences of one batch, all at the same target length.

    At each step the continuations of a sentence's live hypotheses are ranked together. Those with EOS
    among the ``beam`` best are finished and stand apart; the ``beam`` best of the others live on. Ties:
    EOS first, then the better hypothesis, then the lower id.

    Args:
        ensemble: the models, in evaluation mode.
        sources: ids of each sentence, none empty, without EOS.
        settings: how to search.
        limits: the most subwords of each translation, if not ``max_extra`` more than its source has.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        sources: Sequence[Sequence[int]],
        settings: SearchSettings,
        limits: Sequence[int] | None = None,
    ) -> None:
        limits = [len(source) + settings.max_extra for source in sources] if limits is None else limits
        self.ensemble = ensemble
        self.settings = settings
        self.places = list(range(len(sources)))  # of the sentences still searched, B of them
        self.finished = [Finished(settings, limit) for limit in limits]
        self.producible = ensemble.producible()
        self.states = ensemble.start(pad([[*source, EOS] for source in sources], ensemble.device))
        self.ids = torch.full((len(sources), 1, 1), BOS, device=ensemble.device)  # (B, K, N)
        self.log_probs = torch.zeros(len(sources), 1, device=ensemble.device)  # (B, K), best first

    def step(self) -> dict[int, list[Hypothesis]]:
        """Make every hypothesis one subword longer; returns what was found where this ends the search."""
        n = self.ids.size(2)  # subwords after this step: BOS does not count, the new one does
        scores, normaliser = self.ensemble.step(self.ids[:, :, -1], self.states)
        offset = self.log_probs - normaliser  # (B, K)
        ends = scores[:, :, EOS] + offset
        scores[:, :, [PAD, BOS, EOS]] = -torch.inf
        log_probs, parents, newest = best_continuations(scores, offset, self.settings.beam)  # (B, K) each
        log_probs = log_probs.masked_fill(~self.producible[newest], -torch.inf)
        if n > 1:  # a translation is never empty
            self._take_finished(ends, log_probs)

        self._extend(log_probs, parents, newest)
        best = log_probs[:, 0].tolist()
        over = [self.finished[place].settled(best[b], n) for b, place in enumerate(self.places)]
        settled = {place: self._result(b) for b, place in enumerate(self.places) if over[b]}
        if settled:
            self._keep([b for b, is_over in enumerate(over) if not is_over])
        return settled

    def _take_finished(self, ends: Tensor, going_on: Tensor) -> None:
        """Set apart the hypotheses whose EOS, of these log-probabilities (B, K), is among the best."""
        ranked = torch.cat([ends, going_on], dim=1).sort(dim=1, descending=True, stable=True)
        best, which = ranked.values[:, : self.settings.beam], ranked.indices[:, : self.settings.beam]
        b, rank = ((which < ends.size(1)) & (best > -torch.inf)).nonzero(as_tuple=True)
        ids = self.ids[b, which[b, rank], 1:].tolist()
        for sentence, found, log_prob in zip(b.tolist(), ids, best[b, rank].tolist(), strict=True):
            self.finished[self.places[sentence]].add(found, log_prob)

    def _extend(self, log_probs: Tensor, parents: Tensor, newest: Tensor) -> None:
        """Let hypothesis parents[b, k], with the subword newest[b, k], be hypothesis k of sentence b."""
        B, K, N = self.ids.shape
        prefixes = self.ids.gather(1, parents[:, :, None].expand(-1, -1, N))
        self.ids = torch.cat([prefixes, newest[:, :, None]], dim=2)
        self.log_probs = log_probs
        rows = parents + torch.arange(0, B * K, K, device=parents.device)[:, None]
        for state in self.states:
            state.reorder(rows.flatten())

    def _keep(self, sentences: list[int]) -> None:
        """Go on with these of the B sentences."""
        self.places = [self.places[b] for b in sentences]
        if not sentences:
            return
        rows = torch.tensor(sentences, device=self.ids.device)
        self.ids, self.log_probs = self.ids[rows], self.log_probs[rows]
        for state in self.states:
            state.keep(rows)

    def _result(self, b: int) -> list[Hypothesis]:
        """The best finished hypotheses of sentence b; if none has finished, the best live ones."""
        if finished := self.finished[self.places[b]].best:
            return finished[: self.settings.nbest]
        factor = self.settings.length_factor(self.ids.size(2) - 1)
        live = zip(self.ids[b, :, 1:].tolist(), self.log_probs[b].tolist(), strict=True)
        cut = [Hypothesis(ids, log_prob / factor, log_prob, finished=False) for ids, log_prob in live]
        return [hypothesis for hypothesis in cut if hypothesis.log_prob > -torch.inf][: self.settings.nbest]
