"""Where the text of a run lies: three splits, two files each."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import AfterValidator

from qknorm.errors import UserError

PHRASEBOOK = "phrasebook:"
"""What a corpus's name begins with when it is the built-in phrasebook; the pair follows."""


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(os.path.expanduser(path)))


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
"""A path that means the same file wherever the recipe is written to."""

Files = tuple[Path, Path]
"""Source and target side."""


class SplitPaths(NamedTuple):
    """The files of each split; dev and test may be without any."""

    train: Files
    dev: Files | None
    test: Files | None


def find_splits(
    named: Mapping[str, Files | None],
    folder: Path | None,
    source: str | None,
    target: str | None,
    corpus: str | None,
) -> SplitPaths:
    """The named files, or those of the folder; a named corpus must have all three splits."""
    if folder is not None and source is not None and target is not None:
        return _in_folder(folder, source, target, corpus)
    train = named["train"]
    if train is None:
        raise UserError(_nothing_named(corpus))
    missing = [path for pair in named.values() if pair is not None for path in pair if not path.is_file()]
    if missing:
        raise UserError("\n".join(f"There is no file {path}; check the recipe's data." for path in missing))
    return SplitPaths(train, named["dev"], named["test"])


def _in_folder(folder: Path, source: str, target: str, corpus: str | None) -> SplitPaths:
    found: dict[str, Files | None] = {}
    for split in SplitPaths._fields:
        sides = [_plain_or_packed(folder / f"{split}.{code}") for code in (source, target)]
        first, second = sides
        if first is not None and second is not None:
            found[split] = (first, second)
        elif split != "train" and corpus is None and first is None and second is None:
            found[split] = None
        else:
            absent = " and ".join(
                f"{split}.{code}" for code, path in zip((source, target), sides, strict=True) if path is None
            )
            raise UserError(f"{folder} has no {absent}, plain or .gz; {_remedy(corpus, folder)}.")
    train = found["train"]
    assert train is not None
    return SplitPaths(train, found["dev"], found["test"])


def _plain_or_packed(path: Path) -> Path | None:
    packed = path.with_name(f"{path.name}.gz")
    return next((candidate for candidate in (path, packed) if candidate.is_file()), None)


def _nothing_named(corpus: str | None) -> str:
    if corpus is None:
        return (
            "The recipe names no text to learn from; set data.folder, data.source and data.target, "
            "or data.train_source and data.train_target."
        )
    return (
        f'The recipe names the corpus "{corpus}" but no data.folder that holds it; '
        f"{_remedy(corpus, None)} and set data.folder to that folder."
    )


def _remedy(corpus: str | None, folder: Path | None) -> str:
    """What to do where files are missing."""
    to = "DIR" if folder is None else str(folder)
    if corpus is None:
        return "check data.folder, data.source and data.target"
    if corpus.startswith(PHRASEBOOK):
        return f"run `qknorm data phrasebook --pair {corpus.removeprefix(PHRASEBOOK)} --to {to}`"
    return f"run `qknorm data get {corpus} --to {to}`"
