"""Real Vietnamese: the reference against itself, and against its own lines in another order."""

import os
import random
import time
from pathlib import Path

import pytest

from qknorm.scoring import compare, score
from qknorm.scoring.lines import read_lines


@pytest.fixture(scope="module")
def references() -> Path:
    folder = os.environ.get("QKNORM_DATA")
    if not folder:
        pytest.skip("QKNORM_DATA names no folder of corpora")
    path = Path(folder) / "iwslt15-en-vi" / "test.vi.gz"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return path


@pytest.mark.data
def test_reference_against_itself_and_shuffled(references):
    lines = read_lines(references, "references").sentences
    assert len(lines) == 1268
    perfect = timed("score of itself", lambda: score(references, references))
    for name, figure in perfect.figures.items():
        assert figure == pytest.approx(0 if name == "ter" else 100), name
    shuffled = list(lines)
    random.Random(1).shuffle(shuffled)
    low = timed("score of shuffled lines", lambda: score(shuffled, references))
    assert low["bleu_tokenized"] < 3 and low["bleu_13a"] < 3 and low["sacrebleu_detok"] < 3
    assert low["chrf"] < 30 and low["ter"] > 70


@pytest.mark.data
def test_comparison_within_its_time(references):
    lines = read_lines(references, "references").sentences
    draw = random.Random(2)
    noisy = [" ".join(word for word in line.split() if draw.random() > 0.1) for line in lines]
    better = [line if draw.random() < 0.1 else other for line, other in zip(lines, noisy, strict=True)]
    start = time.process_time()
    result = timed("compare", lambda: compare(noisy, better, references))
    assert time.process_time() - start < 15
    assert result.delta > 0 and result.ci_low > 0 and result.p_value < 0.01


def timed(what, action):
    start = time.perf_counter()
    result = action()
    print(f"\n{what}: {time.perf_counter() - start:.2f} s")
    return result
