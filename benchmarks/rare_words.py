"""How translations of runs fare with rare words, and with those of them that are copied from the source.

    python benchmarks/rare_words.py data/iwslt15-en-vi en vi RUN… [--split test]

For each run: the share of the reference's words that its translations have, by how often a word stands in the
training text (``qknorm.analysis.words.by_frequency``); and, of the rare words of references that stand in the
source too, how many it has, copied whole. The folders are run folders or what is kept of them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from qknorm.analysis import words
from qknorm.data import text
from qknorm.errors import UserError
from qknorm.scoring import Kind

RARE = 10
"""Words that stand less often in the training text are rare."""


def word_set(line: str, kind: Kind) -> set[str]:
    return {word.strip() for word in words.tokens(line, kind)}


def copies(sources: Sequence[str], references: Sequence[str], kind: Kind, rare: set[str]) -> list[set[str]]:
    """Of each reference the rare words that its source has too."""
    pairs = zip(sources, references, strict=True)
    return [word_set(source, kind) & word_set(reference, kind) & rare for source, reference in pairs]


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="of the corpus")
    parser.add_argument("source", help="the language translated from")
    parser.add_argument("target")
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--split", choices=["dev", "test"], default="dev")
    parser.add_argument("--kind", choices=["words", "raw"], default="words", help="state of the text")
    args = parser.parse_args(given)
    languages = args.source, args.target
    training = words.count_words(text.lines(args.folder / f"train.{args.target}.gz"), args.kind)
    sources, references = (list(text.lines(args.folder / f"{args.split}.{each}.gz")) for each in languages)
    present = words.count_words(references, args.kind)
    rare = {word for word in present if training[word] < RARE}
    copied = copies(sources, references, args.kind, rare)
    buckets = words.by_frequency(references, references, args.kind, training)
    total = sum(map(len, copied))
    head = ["run", *(f"{b.name} ({b.count:,})" for b in buckets), f"rare and copied ({total:,})"]
    print("| " + " | ".join(head) + " |")
    print("|---" * len(head) + "|")
    for run in args.runs:
        hypotheses = list(text.lines(run / "hypotheses" / f"{args.split}.txt"))
        found = words.by_frequency(hypotheses, references, args.kind, training)
        pairs = zip(copied, hypotheses, strict=True)
        whole = sum(len(wanted & word_set(line, args.kind)) for wanted, line in pairs)
        cells = [str(run), *(f"{b.figures['recall']:.3f}" for b in found), f"{whole:,}"]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
