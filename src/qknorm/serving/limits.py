"""How much the server takes on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one request may ask for, and what may wait."""

    body_bytes: int = 256 * 1024
    """Size of a request."""
    body_seconds: float = 10.0
    """Time a client has to send it."""
    sentences: int = 64
    """Sentences of a request."""
    characters: int = 2000
    """Characters of a sentence."""
    subwords: int = 256
    """Subwords of a sentence."""
    beam: int = 16
    """Hypotheses kept at every step."""
    weights: int = 1_000_000
    """Attention weights of an answer, shared out among its sentences; translations that go without say so."""
    requests: int = 512
    """Requests being read or answered at a time; more are refused with 503."""
    queue: int = 256
    """Sentences waiting to be translated; more are refused with 503."""
    wait: float = 0.004
    """Seconds an idle server waits for more to arrive before it begins to translate."""
    batch_tokens: int | None = None
    """Bound of a batch, as the run's ``decoding.batch_tokens``, which it is where this is not given."""

    def __post_init__(self) -> None:
        if self.queue < self.sentences:
            raise ValueError(
                f"queue ({self.queue}) must be at least sentences ({self.sentences}), "
                "or a full request could never be taken"
            )
