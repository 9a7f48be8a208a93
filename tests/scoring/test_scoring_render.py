"""What a terminal of 100 columns shows."""

import dataclasses
import unicodedata

import pytest

from qknorm.scoring import Change, Comparison, compare, render_comparison, render_scores, score
from qknorm.scoring.render import _cut

REFERENCES = [f"this is the sentence with the number {i} of all" for i in range(30)]
BASELINE = [line.replace("sentence", "phrase") if i % 2 else line for i, line in enumerate(REFERENCES)]


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qknorm.scoring.comparison.TRIALS", 100)
        return compare(BASELINE, REFERENCES, REFERENCES, samples=100)


def columns(line: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else not unicodedata.combining(c) for c in line)


def rows(text: str) -> list[str]:
    assert all(columns(row) <= 100 and row == row.rstrip() for row in text.split("\n"))
    return text.split("\n")


def test_scores_show_every_figure_and_signature():
    scores = score(BASELINE, REFERENCES)
    text = "\n".join(rows(render_scores(scores)))
    assert text.startswith("30 sentences, tokenised text\n")
    for name, figure in scores.figures.items():
        assert f" {figure:.2f} " in text
        assert scores.signatures[name] in text
    raw = render_scores(score(["a b"], ["a b"], kind="raw"))
    assert raw.startswith("1 sentence, raw text\n") and "SacreBLEU " in raw and "multi-bleu" not in raw


def test_comparison_shows_the_tests_and_a_verdict(comparison):
    text = "\n".join(rows(render_comparison(comparison)))
    assert f"{comparison.delta:+.2f}" in text
    assert f"{comparison.ci_low:+.2f} … {comparison.ci_high:+.2f}" in text
    assert f"{comparison.p_value:.4f}" in text
    assert "fewer than 100 sentences" in text
    assert comparison.bleu.signature in text and comparison.chrf.signature_randomization in text


@pytest.mark.parametrize(
    ("delta", "bootstrap", "randomization", "words"),
    [
        (1.0, 0.01, 0.02, "The system is better, significantly"),
        (-1.0, 0.01, 0.02, "The baseline is better, significantly"),
        (1.0, 0.01, 0.06, "only one of the two tests"),
        (1.0, 0.05, 0.2, "The system has the higher BLEU, but it may be chance"),
        (0.0, 1.0, 1.0, "The two have the same BLEU."),
    ],
)
def test_verdict(comparison, delta, bootstrap, randomization, words):
    bleu = dataclasses.replace(
        comparison.bleu, delta=delta, p_value=bootstrap, p_value_randomization=randomization
    )
    assert words in render_comparison(dataclasses.replace(comparison, bleu=bleu))


def test_changed_sentences_are_shown_where_they_differ(comparison):
    start = "word " * 60
    change = Change(7, start + "right end", start + "wrong end", start + "right end", 12.34)
    text = rows(render_comparison(dataclasses.replace(comparison, improved=[change])))
    first = next(i for i, row in enumerate(text) if "line 7" in row)
    assert "…" in text[first] and text[first].endswith("right end")
    assert "baseline" in text[first + 1] and text[first + 1].endswith("wrong end")
    assert "+12.3" in text[first + 2] and text[first + 2].endswith("right end")


@pytest.mark.parametrize("letter", ["字", "e\u0301", "ả", "w "])
def test_long_lines_are_cut_to_the_terminal(comparison, letter):
    change = Change(1, letter * 20_000, letter * 10 + "x", letter * 10 + "y" + letter * 500, -1.0)
    rows(render_comparison(dataclasses.replace(comparison, worsened=[change])))


def test_control_characters_do_not_reach_the_terminal(comparison):
    change = Change(1, "a\x1b[2Jb", "c\u2028d\re\tf", "\u202eg\x07", 1.0)
    text = render_comparison(dataclasses.replace(comparison, improved=[change]))
    assert all(row.isprintable() for row in rows(text))
    assert "c d e f" in text


@pytest.mark.parametrize(
    ("start", "room", "shown"),
    [(0, 10, "0123456789"), (0, 9, "01234567…"), (4, 9, "…456789"), (2, 6, "…2345…")],
)
def test_cut(start, room, shown):
    assert _cut("0123456789", start, room) == shown
