"""Scores and comparisons as plain text for a terminal of 100 columns."""

import unicodedata

from qknorm.scoring.comparison import Change, Comparison, Difference
from qknorm.scoring.metrics import MAIN
from qknorm.scoring.scores import Scores

WIDTH = 100
SIGNIFICANT = 0.05
FEW_SENTENCES = 100

LABELS = {
    "bleu_tokenized": ("BLEU, tokenised", "multi-bleu.perl's: the words as they are"),
    "bleu_13a": ("BLEU, 13a", "multi-bleu-detok.perl's: 13a on the tokenised text"),
    "sacrebleu_detok": ("SacreBLEU, detokenised", "after NLTK's Treebank detokeniser on both sides"),
    "sacrebleu": ("SacreBLEU", "13a on raw text"),
    "chrf": ("chrF", "character n-grams"),
    "ter": ("TER", "edits per reference word: lower is better"),
}


def render_scores(scores: Scores) -> str:
    """A line a figure, then the signature of each."""
    rows = [f"{_number(scores.sentences, 'sentence')}, {_kind(scores)}", ""]
    for name, figure in scores.figures.items():
        label, meaning = LABELS[name]
        rows.append(f"{label:<24}{figure:>7.2f}   {meaning}")
    rows += ["", "Signatures"]
    rows += [f"  {name:<17}{signature}" for name, signature in scores.signatures.items()]
    return "\n".join(rows)


def render_comparison(comparison: Comparison) -> str:
    """Both systems' figures, the tests and what they say, and the sentences that changed most."""
    sentences = comparison.baseline.sentences
    rows = [
        f"{_number(sentences, 'sentence')}, {_kind(comparison.baseline)}; {comparison.samples} bootstrap "
        f"samples, {comparison.trials} randomisation trials, seed {comparison.seed}",
        "",
        f"{'':<24}{'baseline':>9}{'system':>9}{'change':>9}{'95% interval':>20}"
        f"{'p bootstrap':>13}{'p random.':>12}",
    ]
    tested = {MAIN[comparison.baseline.kind]: comparison.bleu, "chrf": comparison.chrf}
    for name, figure in comparison.baseline.figures.items():
        other = comparison.system.figures[name]
        row = f"{LABELS[name][0]:<24}{figure:>9.2f}{other:>9.2f}{other - figure:>+9.2f}"
        rows.append(row + (_tests(tested[name]) if name in tested else ""))
    rows += ["", _verdict(comparison.bleu)]
    if sentences < FEW_SENTENCES:
        rows.append(f"With fewer than {FEW_SENTENCES} sentences the tests say little.")
    rows += _changes("Most improved", comparison.improved) + _changes("Most worsened", comparison.worsened)
    rows += ["", "Signatures"]
    for difference in tested.values():
        rows += [f"  {difference.signature}", f"  {difference.signature_randomization}"]
    return "\n".join(rows)


def _tests(difference: Difference) -> str:
    interval = f"{difference.ci_low:+.2f} … {difference.ci_high:+.2f}"
    return f"{interval:>20}{difference.p_value:>13.4f}{difference.p_value_randomization:>12.4f}"


def _verdict(bleu: Difference) -> str:
    if bleu.delta == 0:
        return "The two have the same BLEU."
    better = "system" if bleu.delta > 0 else "baseline"
    values = bleu.p_value, bleu.p_value_randomization
    if max(values) < SIGNIFICANT:
        return f"The {better} is better, significantly (p < {SIGNIFICANT} in both tests)."
    if min(values) < SIGNIFICANT:
        return f"The {better} has the higher BLEU, but only one of the two tests has p < {SIGNIFICANT}."
    return f"The {better} has the higher BLEU, but it may be chance (p ≥ {SIGNIFICANT} in both tests)."


def _changes(title: str, changes: list[Change]) -> list[str]:
    if not changes:
        return []
    rows = ["", f"{title} (change in sentence BLEU)"]
    for change in changes:
        texts = _clip([_printable(text) for text in (change.reference, change.baseline, change.system)])
        heads = (f"line {change.line}", "", f"{change.change:+.1f}")
        for head, label, text in zip(heads, ("reference", "baseline", "system"), texts, strict=True):
            rows.append(f"  {head:<12}{label:<11}{text}".rstrip())
    return rows


def _clip(texts: list[str], room: int = WIDTH - 25) -> list[str]:
    """Cut the texts to `room` columns; a longer one starts shortly before the two systems part ways."""
    _, baseline, system = texts
    start = max(0, _common_start(baseline, system) - room // 3)
    return [_cut(text, min(start, max(0, len(text) - room + 1)), room) for text in texts]


def _cut(text: str, start: int, room: int) -> str:
    """`room` columns of `text` from character `start`, with an ellipsis where something is missing."""
    if sum(map(_columns, text)) <= room:
        return text
    kept = "…" if start else ""
    room -= len(kept)
    for position in range(start, len(text)):
        room -= _columns(text[position])
        if room < 1 and position < len(text) - 1:
            return kept + "…"
        kept += text[position]
    return kept


def _common_start(one: str, other: str) -> int:
    """How many characters two texts share before the first that differs."""
    for position, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return position
    return min(len(one), len(other))


def _columns(character: str) -> int:
    """Columns on a terminal: two for a wide character, none for a combining mark."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _printable(text: str) -> str:
    """One line without control characters: nothing a translation holds may move the terminal's cursor."""
    shown = (character for character in text if unicodedata.category(character) != "Cf")
    return "".join(character if character.isprintable() else " " for character in shown)


def _kind(scores: Scores) -> str:
    return "tokenised text" if scores.kind == "words" else "raw text"


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
