"""A beam search in slots of static shape: every step the same operations on the same places of memory.

It finds what ``BatchSearch`` finds, by the same rules; but nothing of a step waits for the device, so that a
step can be captured once and replayed. A sentence that is over stands still until its slot is given away.

Axes: B slots (a sentence each), K hypotheses of a sentence, T target positions there is room for, V subwords.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qknorm.ids import BOS, EOS, PAD
from qknorm.model import Transformer
from qknorm.model.transformer import SlotState
from qknorm.nn.functional import widen
from qknorm.nn.slots import Sight, SlotCrossCache, SlotSelfCache
from qknorm.translation.batches import send
from qknorm.translation.continuations import best_continuations
from qknorm.translation.hypothesis import Hypothesis, SearchSettings
from qknorm.translation.waiting import Encoded

Storage = list[tuple[Tensor, Tensor, Tensor, Tensor]]
"""Of each layer, flat: own keys and values, the source's keys and values."""


class Slots:
    """Up to ``count`` sentences searched side by side, each at a length of its own.

    Args:
        model: whose decoder it is; it is not kept.
        storage: for the caches; it may be larger than this search needs, and serve others at other times.
        settings: the beam and ``nbest``; the length penalty may change with every ``prepare``.
        count: B.
        room: T; no sentence may have a limit above T − 2.
        source_room: source positions there is room for, EOS counted.
    """

    def __init__(
        self,
        model: Transformer,
        storage: Storage,
        settings: SearchSettings,
        count: int,
        room: int,
        source_room: int,
    ) -> None:
        B, K, T = count, settings.beam, room
        self.storage, self.settings, self.room, self.source_room = storage, settings, room, source_room
        device, dtype = model.embedding.weight.device, model.embedding.weight.dtype
        self.heads, self.width = model.settings.heads, model.settings.d_model // model.settings.heads

        def whole(*shape: int, value: int = 0) -> Tensor:
            return torch.full(shape, value, dtype=torch.int64, device=device)

        self.position = whole(B)  # of the newest subword; BOS is at 0
        self.newest = whole(B, K, value=BOS)
        self.limit = whole(B, value=1)
        self.lengths = whole(B, value=1)  # of the sources
        self.over = torch.ones(B, dtype=torch.bool, device=device)
        self.log_probs = widen(torch.zeros(B, K, dtype=dtype, device=device))  # best first
        self.words = whole(B, T, K)  # the subword that hypothesis k got at a position
        self.ancestors = whole(B, K, T).int()  # the hypothesis that k's subword at a position was given to
        self.found_score = torch.full((B, K), -torch.inf, dtype=torch.float64, device=device)  # best first
        self.found_log_prob = torch.zeros_like(self.log_probs)
        self.found_length = whole(B, K)
        self.found_ancestors = self.ancestors.clone()
        self.factors = torch.ones(T + 2, dtype=torch.float64, device=device)  # of each length
        self.special = torch.tensor([PAD, BOS, EOS], device=device)
        self.table, self.bias = (torch.empty_like(x) for x in model.output(dtype))
        self.producible = torch.ones(self.bias.size(0), dtype=torch.bool, device=device)

    def prepare(self, model: Transformer, settings: SearchSettings, producible: Tensor) -> None:
        """Read anew what may have changed since the last search: weights, length penalty."""
        table, bias = model.output(self.table.dtype)
        self.table.copy_(table)
        self.bias.copy_(bias)
        self.producible.copy_(producible)
        self.settings = settings
        factors = [settings.length_factor(n) for n in range(self.factors.size(0))]
        self.factors.copy_(torch.tensor(factors, dtype=torch.float64))
        self.over.fill_(True)

    def fill(self, count: int, slots: list[int], encoded: Encoded) -> None:
        """Begin new sentences in these of the first ``count`` slots."""
        rows, n = send(torch.tensor([slots, encoded.lengths]), self.position.device)
        for (k, v), cache in zip(encoded.layers, self.state(count).cross, strict=True):
            cache.fill(rows, k, v)
        self.lengths[rows] = n + 1
        self.limit[rows] = n + self.settings.max_extra
        self.position.index_fill_(0, rows, 0)
        self.newest.index_fill_(0, rows, BOS)
        self.log_probs.index_fill_(0, rows, -torch.inf)  # but for the first, all K being the same yet
        self.log_probs[:, 0].index_fill_(0, rows, 0.0)
        self.ancestors.index_fill_(0, rows, 0)
        self.found_score.index_fill_(0, rows, -torch.inf)
        self.over.index_fill_(0, rows, False)

    def move(self, count: int, origin: list[int], target: list[int]) -> None:
        """Bring the sentences of some of the first ``count`` slots into others."""
        rows, to = send(torch.tensor([origin, target]), self.position.device)
        state = self.state(count)
        caches = [x for own in state.own for x in (own.keys, own.values)]
        caches += [x for cross in state.cross for x in (cross.keys, cross.values)]
        for x in (
            *(self.position, self.newest, self.limit, self.lengths, self.over, self.log_probs, self.words),
            *(self.ancestors, self.found_score, self.found_log_prob, self.found_length),
            *(self.found_ancestors, *caches),
        ):
            x[to] = x[rows]
        self.over.index_fill_(0, rows, True)

    def state(self, count: int) -> SlotState:
        """The first ``count`` slots as the model sees them; where a slot lies does not depend on it."""
        H, D, K, T, S = self.heads, self.width, self.settings.beam, self.room, self.source_room
        sight = Sight(self.position[:count], self.ancestors[:count], self.lengths[:count])
        own, cross = [], []
        for keys, values, source_keys, source_values in self.storage:
            k, v = (x[: count * H * T * K * D].view(count, H, T, K, D) for x in (keys, values))
            own.append(SlotSelfCache(k, v, sight))
            k, v = (x[: count * H * S * D].view(count, H, S, D) for x in (source_keys, source_values))
            cross.append(SlotCrossCache(k, v, sight))
        return SlotState(own, cross, sight, self.table, self.bias, T, S)

    def step(self, model: Transformer, count: int) -> None:
        """Make every hypothesis of the first ``count`` slots one subword longer."""
        scores = widen(model.slot_step(self.newest[:count], self.state(count)))
        offset = self.log_probs[:count] - scores.logsumexp(dim=-1)
        ends = scores[:, :, EOS] + offset  # (B, K)
        ends = ends.masked_fill(self.position[:count, None] == 0, -torch.inf)  # never an empty translation
        scores = scores.index_fill_(2, self.special, -torch.inf)
        log_probs, parents, newest = best_continuations(scores, offset, self.settings.beam)  # (B, K) each
        log_probs = log_probs.masked_fill(~self.producible[newest], -torch.inf)
        searched = ~self.over[:count, None]
        self._take_finished(ends, log_probs, searched)
        self._extend(log_probs, parents, newest, searched)
        self._settle(searched.squeeze(1))

    def _take_finished(self, ends: Tensor, going_on: Tensor, searched: Tensor) -> None:
        """Set apart the hypotheses whose EOS, of these log-probabilities (B, K), is among the best."""
        B, K = ends.shape
        ranked = torch.cat([ends, going_on], dim=1).sort(dim=1, descending=True, stable=True)
        best, which = ranked.values[:, :K], ranked.indices[:, :K]
        ended = (which < K) & (best > -torch.inf) & searched
        length = self.position[:B, None].expand(-1, K)  # EOS does not count
        score = (best.double() / self.factors[length + 1]).masked_fill(~ended, -torch.inf)
        lineage = _rows(self.ancestors[:B], which.clamp(max=K - 1))
        scores = torch.cat([self.found_score[:B], score], dim=1).sort(dim=1, descending=True, stable=True)
        order = scores.indices[:, :K]  # of equal ones the first found comes first
        self.found_score[:B] = scores.values[:, :K]
        self.found_log_prob[:B] = torch.cat([self.found_log_prob[:B], best], dim=1).gather(1, order)
        self.found_length[:B] = torch.cat([self.found_length[:B], length], dim=1).gather(1, order)
        self.found_ancestors[:B] = _rows(torch.cat([self.found_ancestors[:B], lineage], dim=1), order)

    def _extend(self, log_probs: Tensor, parents: Tensor, newest: Tensor, searched: Tensor) -> None:
        """Let hypothesis parents[b, k], with the subword newest[b, k], be hypothesis k of slot b."""
        B, K = newest.shape
        next_ = self.position[:B] + 1
        lineage = _rows(self.ancestors[:B], parents)
        own = torch.arange(K, dtype=torch.int32, device=newest.device).view(1, K, 1).expand(B, K, 1)
        lineage.scatter_(2, next_.view(B, 1, 1).expand(B, K, 1), own)
        self.words[:B].scatter_(1, next_.view(B, 1, 1).expand(B, 1, K), newest.unsqueeze(1))
        self.ancestors[:B] = torch.where(searched.unsqueeze(2), lineage, self.ancestors[:B])
        self.log_probs[:B] = torch.where(searched, log_probs, self.log_probs[:B])
        self.newest[:B] = torch.where(searched, newest, self.newest[:B])
        self.position[:B] += searched.squeeze(1)

    def _settle(self, searched: Tensor) -> None:
        """Which searches are over by now, as ``Finished.settled`` has it."""
        B = searched.size(0)
        n, limit, found = self.position[:B], self.limit[:B], self.found_score[:B]
        live = self.log_probs[:B, 0].double()
        bound = live / torch.maximum(self.factors[n + 1], self.factors[limit])  # log p only falls
        over = (n >= limit) | (live == -torch.inf) | (bound <= found[:, self.settings.nbest - 1])
        over |= live / self.factors[n] <= found[:, -1]
        self.over[:B] |= over & searched

    def results(self, slots: list[int]) -> list[list[Hypothesis]]:
        """The best finished hypotheses of these slots; where none has finished, the best live ones."""
        rows = send(torch.tensor(slots), self.position.device)
        nbest = self.settings.nbest
        none = self.found_score[rows, :1] == -torch.inf
        length = torch.where(none, self.position[rows, None], self.found_length[rows])[:, :nbest]
        log_prob = torch.where(none, self.log_probs[rows], self.found_log_prob[rows])[:, :nbest]
        there = torch.where(none, log_prob, self.found_score[rows, :nbest]) > -torch.inf
        lineage = torch.where(none.unsqueeze(2), self.ancestors[rows], self.found_ancestors[rows])[:, :nbest]
        longest = int(length.max())
        words = self.words[rows].transpose(1, 2).gather(1, lineage.long())[:, :, 1 : longest + 1]
        finished = ~none.expand_as(there)
        columns = [x.flatten(0, 1).tolist() for x in (words, length, log_prob, finished, there)]
        each = [self._hypothesis(*one) if is_there else None for *one, is_there in zip(*columns, strict=True)]
        return [[h for h in each[i : i + nbest] if h is not None] for i in range(0, len(each), nbest)]

    def _hypothesis(self, ids: list[int], length: int, log_prob: float, finished: bool) -> Hypothesis:
        score = log_prob / self.settings.length_factor(length + finished)
        return Hypothesis(ids[:length], score, log_prob, finished)


def _rows(table: Tensor, which: Tensor) -> Tensor:
    """Rows which[b, k] of table[b]; (B, K, T)."""
    return table.gather(1, which.unsqueeze(2).expand(-1, -1, table.size(2)))
