"""A parallel corpus on disk: three splits, two plain UTF-8 files each."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from qknorm.data.text import replacing

SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Corpus:
    """Where a corpus lies and what is to be known of it before it is used.

    `state` says how its text is to be cut: "words" is tokenised already, "raw" is as people write it.
    `note` is for the user's eyes: where it came from, and what its scores may be compared with.
    """

    name: str
    source: str
    target: str
    paths: dict[str, tuple[Path, Path]]
    counts: dict[str, int]
    state: Literal["words", "raw"]
    note: str


def split_paths(folder: Path, source: str, target: str) -> dict[str, tuple[Path, Path]]:
    """The six files of a corpus: `train.gl`, `train.en`, `dev.gl` and so on, source side first."""
    return {split: (folder / f"{split}.{source}", folder / f"{split}.{target}") for split in SPLITS}


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write one sentence a line, all of them or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        for line in lines:
            file.write(line.encode() + b"\n")
