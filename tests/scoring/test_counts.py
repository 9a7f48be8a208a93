"""Counts by several processes are those of one, and the figures those of sacrebleu's own corpus scores."""

import random
import subprocess
import sys

import pytest

from qknorm.scoring import counts, score
from qknorm.scoring.metrics import measures

WORDS = ["a", "b,", "c.", "d", "e", "&apos;t", "Ω", "năm", "``", "\u2028x"]


@pytest.fixture(scope="module")
def texts() -> tuple[list[str], list[str]]:
    """Translations that are their references with words lost, moved and changed; some empty."""
    draw = random.Random(1)
    references = [" ".join(draw.choices(WORDS, k=draw.randrange(16))) for _ in range(61)]
    hypotheses = []
    for reference in references:
        words = [draw.choice(WORDS) if draw.random() < 0.2 else word for word in reference.split(" ")]
        cut = draw.randrange(len(words) + 1)
        hypotheses.append(" ".join(words[cut:] + words[: max(cut - 1, 0)]))
    return hypotheses, references


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Three cores; the sentences each process got are noted."""
    monkeypatch.setattr(counts, "_cores", lambda: 3)
    monkeypatch.setattr(counts, "SHARE", 20)
    run, sizes = subprocess.run, []

    def noted(*args, **named):
        sizes.append(len(named["input"]))
        return run(*args, **named)

    monkeypatch.setattr(subprocess, "run", noted)
    return sizes


def expected(hypotheses: list[str], references: list[str], kind) -> tuple[dict, dict]:
    """Figures and signatures as sacrebleu makes them of the whole text."""
    figures, signatures = {}, {}
    for name, metric, prepare in measures(kind, True, references):
        figures[name] = metric.corpus_score([prepare(line) for line in hypotheses], None).score
        signatures[name] = str(metric.get_signature())
    return figures, signatures


@pytest.mark.parametrize("kind", ["words", "raw"])
def test_three_processes_give_sacrebleus_figures_to_the_digit(texts, kind, started):
    scores = score(*texts, kind=kind)
    assert len(started) == 3
    assert (scores.figures, scores.signatures) == expected(*texts, kind)
    assert 0 < scores["ter"] < 100 and scores.main > 0


def test_one_process_gives_the_same(texts, started, monkeypatch):
    shared = score(*texts)
    del started[:]
    monkeypatch.setattr(counts, "_cores", lambda: 1)
    assert score(*texts) == shared and not started


def test_few_sentences_and_no_ter_start_no_process(texts, started):
    hypotheses, references = texts
    score(hypotheses[:39], references[:39])
    score(hypotheses, references, ter=False)
    assert not started


def test_shares_of_processes_that_fail_are_counted_here(texts, started, monkeypatch):
    shared = score(*texts)
    for failing in ("/nowhere/python", "/bin/false", "/bin/true"):
        monkeypatch.setattr(sys, "executable", failing)
        assert score(*texts) == shared
    assert len(started) == 12


def test_no_script_is_run_again_in_the_processes(tmp_path):
    """A script without a guard, as spawned processes would need one."""
    script = tmp_path / "script.py"
    script.write_text(
        "print('begun')\n"
        "from qknorm.scoring import counts, score\n"
        "counts._cores, counts.SHARE, counts.count_here = lambda: 2, 1, None\n"
        "print(score(['a b', 'c d'], ['a b', 'c d'])['chrf'])\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["begun", "100.0"]
