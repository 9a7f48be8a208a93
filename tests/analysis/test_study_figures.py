"""Pictures of a study of heads: what stands on them can be read."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.text import Annotation, Text

from qknorm.analysis.measures import MEASURES
from qknorm.analysis.study import HeadStudy, KindStudy
from qknorm.analysis.study_figures import importance_figure, map_figure, measures_figure
from qknorm.analysis.weights import KINDS


def a_study(places: np.ndarray, layers: int) -> HeadStudy:
    """Heads that lie at these places on their map."""
    apart = np.linalg.norm(places[:, None] - places, axis=-1)
    values = np.zeros((layers, len(places) // layers))
    kind = KindStudy(dict.fromkeys(MEASURES, values), {}, 1, apart, [None] * layers, [1.0] * layers, None)
    return HeadStudy("run", "dev", 1, 1.0, dict.fromkeys(KINDS, kind))


def test_in_a_crowd_only_heads_with_room_have_names():
    rng = np.random.default_rng(2)
    places = np.concatenate([rng.normal(size=(90, 2)) * 0.05, rng.normal(size=(6, 2))])
    figure = map_figure([a_study(places, layers=6)])
    figure.draw_without_rendering()
    names = [each for each in figure.axes[0].texts if isinstance(each, Annotation)]
    assert 8 < len(names) < 70 and {"6.16", "6.15", "6.11"} <= {each.get_text() for each in names}
    boxes = [each.get_window_extent() for each in names]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


def test_names_of_heads_neither_overlap_nor_leave_the_map():
    """Also of heads that lie on top of each other, and at the edges."""
    places = np.array([[0.0, 0.0], [0.0, 0.0], [0.5, 0.4], [0.51, 0.4], [-0.6, 0.1], [0.1, -0.5]])
    figure = map_figure([a_study(places, layers=2)])
    figure.draw_without_rendering()
    for axes in figure.axes[:3]:
        names = [each for each in axes.texts if isinstance(each, Annotation)]
        assert [each.get_text() for each in names] == ["1.1", "1.2", "1.3", "2.1", "2.2", "2.3"]
        boxes = [each.get_window_extent() for each in names]
        assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
        inside = axes.get_window_extent()
        assert all(inside.x0 < box.x0 and box.x1 < inside.x1 for box in boxes)


@pytest.mark.parametrize("draw", [importance_figure, map_figure, measures_figure])
def test_long_names_of_two_runs_are_whole_and_apart(draw):
    study = a_study(np.array([[0.0, 0.0], [0.5, 0.4], [-0.6, 0.1], [0.1, -0.5]]), layers=2)
    kinds = {kind: replace(each, importance=np.ones((2, 2))) for kind, each in study.kinds.items()}
    names = [
        f"en-vi-{system}-fast-seed1-ea14e8eb512d-and-much-more-of-it-than-has-room"
        for system in ("qknorm", "baseline")
    ]
    figure = draw([replace(study, run=name, kinds=kinds) for name in names])
    figure.draw_without_rendering()
    named = [each for each in figure.findobj(Text) if each.get_text() in names]
    assert sorted(each.get_text() for each in named) == sorted(names)
    titles = [axes.title for axes in figure.findobj(Axes) if axes.get_title()]
    boxes = [each.get_window_extent() for each in (*named, *titles)]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)
