"""The search on a GPU: sentences pass through slots of static shape, and the step is a replayed CUDA graph.

A step of decoding is some hundred small kernels, whose launching takes longer than their work. Captured
once, they are launched as one. Sentences pass through a number of slots: when some are over, their slots are
given to the next sentences, and when none are waiting, the rest move together into fewer slots.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from qknorm.model import Transformer
from qknorm.nn.triton_support import triton_takes
from qknorm.translation.hypothesis import Hypothesis, SearchSettings
from qknorm.translation.slots import Slots, Storage
from qknorm.translation.waiting import Waiting

MOST_SLOTS, FEWEST_SLOTS = 256, 4
SHRINK = 4
"""By which the number of slots falls when sentences run out: each number is one more graph to capture."""
CHECK_EVERY = 4
"""Steps between two looks at which sentences are over; each look waits for the device."""
SOURCE_ROOMS = (32, 64, 128, 256, 512, 1024)
"""Positions that may be kept for a source, EOS counted."""
MOST_ROOM = 1280
"""Target positions above which a sentence is left to the plain search."""
TOKENS = 8
"""Subwords kept for each of ``batch_tokens``, memory allowing: a GPU needs many at a time to be busy."""
MOST_SCORES = 2**26
"""Bound on slots × beam × subwords of the vocabulary: the scores of one step."""
MOST_SHAPES = 24
"""Shapes of slots, with their graphs, that are remembered."""

Shape = tuple[int, int, int, int, int]
"""beam, nbest, most slots, room, source room."""
Settled = Callable[[list[int], list[list[Hypothesis]]], None]


class StaticSearch:
    """The searches of one model: their storage and captured steps, kept from call to call.

    Weights are read where they lie, so that a graph holds through training; if they have moved (another
    device or dtype), everything is made anew. One search runs at a time.
    """

    def __init__(self, model: Transformer) -> None:
        self.affordable = _affordable(model)
        self.lock = threading.Lock()
        self.storage: Storage = []
        self.slots: dict[Shape, Slots] = {}
        self.graphs: dict[tuple[Shape, int], torch.cuda.CUDAGraph] = {}
        self.addresses: tuple[tuple[int, torch.dtype], ...] = ()
        self.captured = True  # where there is CUDA; a test may say no
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None

    def search(
        self,
        model: Transformer,
        sources: Sequence[Sequence[int]],
        settings: SearchSettings,
        producible: Tensor,
        settled: Settled,
    ) -> None:
        """Search for translations of sources that ``fits`` says yes to; hands over results as they come.

        Args:
            model: in evaluation mode.
            sources: the subword ids of each sentence, without EOS.
            settings: how to search.
            producible: (V,) True for what a translation may have.
            settled: called with the numbers of some sources and what was found for each.
        """
        groups = self._groups(model, settings, sources)
        with self.lock, torch.cuda.device_of(model.embedding.weight):  # type: ignore[no-untyped-call]
            counts = {room: self._count(model, settings, room, len(group)) for room, group in groups.items()}
            self._make_room(model, settings, counts)
            for room, group in groups.items():
                shape = self._shape(model, settings, room)
                slots = self._slots(model, settings, shape)
                slots.prepare(model, settings, producible)
                self._run(model, slots, shape, counts[room], [sources[i] for i in group], group, settled)

    def _groups(
        self, model: Transformer, settings: SearchSettings, sources: Sequence[Sequence[int]]
    ) -> dict[int, list[int]]:
        """The numbers of sources that are searched together, longest first, by the room for the source.

        Where the kernels read no more than there is, room costs memory alone: shorter sources then go along
        with longer ones, as long as those have as many slots. Fewer groups have fewer ends, at which slots
        stand empty.
        """
        joins = triton_takes(model.embedding.weight)
        groups: dict[int, list[int]] = {}
        last = 0
        for i in sorted(range(len(sources)), key=lambda i: len(sources[i]), reverse=True):
            room = source_room(len(sources[i]))
            if not (groups and joins and self._as_many_slots(model, settings, last, room)):
                last = room
            groups.setdefault(last, []).append(i)
        return groups

    def _as_many_slots(self, model: Transformer, settings: SearchSettings, room: int, smaller: int) -> bool:
        return self.most_slots(model, settings, room) == self.most_slots(model, settings, smaller)

    def fits(self, model: Transformer, source: Sequence[int], settings: SearchSettings) -> bool:
        """Whether there is room for a sentence; a very long one is left to the plain search."""
        if not source or len(source) + 1 > SOURCE_ROOMS[-1]:
            return False
        room = source_room(len(source))
        if target_room(room, settings) > MOST_ROOM:
            return False
        return self.most_slots(model, settings, room) >= FEWEST_SLOTS

    def _run(
        self,
        model: Transformer,
        slots: Slots,
        shape: Shape,
        count: int,
        sources: list[Sequence[int]],
        names: list[int],
        settled: Settled,
    ) -> None:
        """Search all sources in ``count`` slots, fewer towards the end."""
        waiting = Waiting(model, sources)
        held: dict[int, int] = {}  # slot to sentence
        while waiting or held:
            free = [slot for slot in range(count) if slot not in held]
            while free and waiting:
                taken, encoded = waiting.take(len(free))
                slots.fill(count, free[: len(taken)], encoded)
                held.update(zip(free, taken, strict=False))
                free = free[len(taken) :]
            done: list[int] = []
            while len(done) < min(max(1, count // 8), len(held)):  # a few at a time are worth the trouble
                for _ in range(CHECK_EVERY):
                    self._step(model, slots, shape, count)
                waiting.encode(max(1, count // 4))  # while the device is busy
                over = slots.over[:count].tolist()
                done = [slot for slot in held if over[slot]]
            settled([names[held[slot]] for slot in done], slots.results(done))
            for slot in done:
                del held[slot]
            while not waiting and held and len(held) <= count // SHRINK >= FEWEST_SLOTS:
                count //= SHRINK
                held = _moved_together(slots, held, count)

    def _step(self, model: Transformer, slots: Slots, shape: Shape, count: int) -> None:
        """One step: replayed, or where it is the first of its shape run and then captured."""
        if not (self.captured and _on_gpu(model)):
            slots.step(model, count)
            return
        if graph := self.graphs.get((shape, count)):
            graph.replay()
            return
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._pool = torch.cuda.graph_pool_handle()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            slots.step(model, count)  # this one counts, and sets up what may not be set up in a capture
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # No graph reads what another left in the pool: all that lasts is in the slots and the storage.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            slots.step(model, count)
        self.graphs[shape, count] = graph

    def _make_room(self, model: Transformer, settings: SearchSettings, counts: dict[int, int]) -> None:
        """Storage for the largest of these searches; what was captured over a smaller one is forgotten."""
        rooms = {room: target_room(room, settings) for room in counts}
        model.make_room(max(*rooms.values(), *rooms))
        E, weight = model.settings.d_model, model.embedding.weight
        own = max(count * rooms[room] * settings.beam * E for room, count in counts.items())
        source = max(count * room * E for room, count in counts.items())
        tensors = [*model.parameters(), *model.buffers(), *model.tables()]
        addresses = tuple((x.data_ptr(), x.dtype) for x in tensors)
        enough = bool(self.storage) and all(
            flat.numel() >= need
            for flat, need in zip(self.storage[0], (own, own, source, source), strict=True)
        )
        if enough and addresses == self.addresses and len(self.slots) < MOST_SHAPES:
            return
        if self.storage and addresses == self.addresses:
            own, source = max(own, self.storage[0][0].numel()), max(source, self.storage[0][2].numel())
        self.slots.clear()
        self.graphs.clear()
        self._stream = self._pool = None  # of the device there was; and a pool must not outlive its graphs
        self.storage = []
        self.addresses = addresses
        for _ in model.decoder:  # zeros, for what is masked is still multiplied, by 0
            k, v = weight.new_zeros(own), weight.new_zeros(own)
            self.storage.append((k, v, weight.new_zeros(source), weight.new_zeros(source)))

    def most_slots(self, model: Transformer, settings: SearchSettings, room: int) -> int:
        """How many sentences with this room for the source are searched at a time: a power of two, or 0."""
        tokens = settings.beam * target_room(room, settings) + room
        bound = min(
            min(settings.batch_tokens * TOKENS, self.affordable) // tokens,
            MOST_SCORES // (settings.beam * model.embedding.num_embeddings),
            MOST_SLOTS,
        )
        return 1 << (bound.bit_length() - 1) if bound else 0

    def _shape(self, model: Transformer, settings: SearchSettings, room: int) -> Shape:
        most, target = self.most_slots(model, settings, room), target_room(room, settings)
        return settings.beam, settings.nbest, most, target, room

    def _slots(self, model: Transformer, settings: SearchSettings, shape: Shape) -> Slots:
        if shape not in self.slots:
            *_, most, room, source = shape
            self.slots[shape] = Slots(model, self.storage, settings, most, room, source)
        return self.slots[shape]

    def _count(self, model: Transformer, settings: SearchSettings, room: int, sentences: int) -> int:
        """Slots to begin with: as few as the sentences need, of the numbers that shrinking would reach."""
        count = self.most_slots(model, settings, room)
        while count // SHRINK >= max(sentences, FEWEST_SLOTS):
            count //= SHRINK
        return count


_SEARCHES: WeakKeyDictionary[Transformer, StaticSearch] = WeakKeyDictionary()


def search_of(model: Transformer) -> StaticSearch:
    """The one search of this model; it lives as long as the model."""
    if model not in _SEARCHES:
        _SEARCHES[model] = StaticSearch(model)
    return _SEARCHES[model]


def source_room(length: int) -> int:
    """Positions kept for a source of this length, EOS not counted in it."""
    return next(room for room in SOURCE_ROOMS if length + 1 <= room)


def target_room(room: int, settings: SearchSettings) -> int:
    """Positions kept for each hypothesis of sources with this room: the greatest limit, and BOS, and one."""
    return -(-(room + settings.max_extra + 2) // 16) * 16


def _affordable(model: Transformer) -> int:
    """Subwords whose keys and values half the free memory of the model's GPU would hold."""
    weight = model.embedding.weight
    if not weight.is_cuda:
        return sys.maxsize
    free = torch.cuda.mem_get_info(weight.device)[0]
    free += torch.cuda.memory_reserved(weight.device) - torch.cuda.memory_allocated(weight.device)
    return free // 2 // (2 * len(model.decoder) * model.settings.d_model * weight.element_size())


def _moved_together(slots: Slots, held: dict[int, int], count: int) -> dict[int, int]:
    """Move what is held into the first ``count`` slots; returns what is held where then."""
    outside = [slot for slot in held if slot >= count]
    free = [slot for slot in range(count) if slot not in held][: len(outside)]
    if outside:
        slots.move(max(outside) + 1, outside, free)
    to = dict(zip(outside, free, strict=True))
    return {to.get(slot, slot): sentence for slot, sentence in held.items()}


def _on_gpu(model: Transformer) -> bool:
    return model.embedding.weight.is_cuda
