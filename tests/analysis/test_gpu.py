"""A study of heads on a GPU finds what it finds on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

from qknorm.analysis import pair_attention
from qknorm.analysis.study import study_heads
from qknorm.analysis.text import split_text

pytestmark = pytest.mark.gpu


def test_the_same_study(runs):
    text, subwords = split_text(runs[0], "dev").without_blanks(), runs[0].subwords()
    here, there = (study_heads(runs[0].model("best", d), subwords, text, "run") for d in ("cpu", "cuda"))
    for kind in here.kinds:
        for name, values in here.kinds[kind].figures().items():
            np.testing.assert_allclose(there.kinds[kind].figures()[name], values, atol=2e-3, err_msg=name)
        np.testing.assert_allclose(there.kinds[kind].max_logit, here.kinds[kind].max_logit, rtol=1e-2)


def test_the_same_maps(runs):
    subwords = runs[0].subwords()
    pair = subwords.encode(["ano casa"], "source"), subwords.encode(["house year"], "target")
    here, there = (pair_attention(runs[0].model("best", d), subwords, *pair)[0] for d in ("cpu", "cuda"))
    np.testing.assert_allclose(there.cross.weights, here.cross.weights, atol=1e-3)
