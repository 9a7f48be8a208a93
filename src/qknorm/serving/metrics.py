"""Counts of what the server does, in Prometheus's text format."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass
class Counter:
    """A number that only grows, for each set of labels."""

    name: str
    about: str
    labels: tuple[str, ...] = ()
    counts: Tally[tuple[str, ...]] = field(default_factory=Tally)

    def add(self, count: int = 1, *values: str) -> None:
        self.counts[values] += count

    def lines(self) -> Iterator[str]:
        yield from _heading(self.name, self.about, "counter")
        if not self.labels:
            yield f"{self.name} {self.counts[()]}"
        else:
            for values, count in sorted(self.counts.items()):
                yield f"{self.name}{_labelled(self.labels, values)} {count}"


class Histogram:
    """How often something was at most each of these bounds."""

    def __init__(self, name: str, about: str, bounds: Sequence[float]) -> None:
        self.name, self.about, self.bounds = name, about, bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self) -> Iterator[str]:
        yield from _heading(self.name, self.about, "histogram")
        total = 0
        for bound, count in zip([*map(str, self.bounds), "+Inf"], self.counts, strict=True):
            total += count
            yield f"{self.name}_bucket{_labelled(('le',), (bound,))} {total}"
        yield f"{self.name}_sum {self.sum}"
        yield f"{self.name}_count {total}"


class Metrics:
    """All that is counted. Changed on the event loop alone, so nothing needs a lock."""

    def __init__(self) -> None:
        self.requests = Counter(
            "qknorm_requests_total", "Requests answered.", labels=("method", "path", "status")
        )
        self.seconds = Histogram("qknorm_translate_seconds", "Time to answer POST /translate.", SECONDS)
        self.sentences = Counter("qknorm_sentences_total", "Sentences translated.")
        self.subwords = Counter("qknorm_source_subwords_total", "Source subwords of sentences translated.")
        self.batch_sizes = Histogram("qknorm_batch_sentences", "Sentences translated together.", SIZES)
        self.refused = Counter("qknorm_refused_sentences_total", "Sentences refused because of a full queue.")
        self.dropped = Counter("qknorm_dropped_sentences_total", "Sentences dropped because nobody waited.")
        self.queued: Callable[[], int] = lambda: 0

    def text(self) -> str:
        """The whole page."""
        every = (
            self.requests,
            self.seconds,
            self.sentences,
            self.subwords,
            self.batch_sizes,
            self.refused,
            self.dropped,
        )
        lines = [line for each in every for line in each.lines()]
        lines += _heading("qknorm_queued_sentences", "Sentences waiting to be translated.", "gauge")
        lines.append(f"qknorm_queued_sentences {self.queued()}")
        return "\n".join(lines) + "\n"


def _heading(name: str, about: str, kind: str) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]


def _labelled(names: Sequence[str], values: Sequence[str]) -> str:
    """{name="value"}; values are our own words, so none needs escaping."""
    return "{" + ",".join(f'{name}="{value}"' for name, value in zip(names, values, strict=True)) + "}"
