"""Pictures of attention: every panel is there with its tokens, in any script."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matplotlib import ft2font
from matplotlib.text import Text

from qknorm.analysis import AttentionMap, fonts
from qknorm.analysis.direction import mostly_right_to_left
from qknorm.analysis.heatmaps import TITLES, WIDEST, Grid, draw, save
from qknorm.analysis.maps import Words


def a_map(rows: list[str], columns: list[str], layers: int = 2, heads: int = 3) -> AttentionMap:
    weights = np.random.default_rng(0).random((layers, heads, len(rows), len(columns)), np.float32)
    weights /= weights.sum(-1, keepdims=True)
    return AttentionMap("cross", rows, columns, weights, Words(rows, []), Words(columns, []))


def panels(figure):
    return figure.axes[:-1]  # the last is the scale of colours


def labels(axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def test_a_panel_for_each_head_with_its_own_weights_and_tokens():
    seen = a_map(["▁o", "gato", "</s>"], ["the", "$cat$", "</s>"])
    figure = draw([Grid(seen, [0, 1], [0, 2])])
    assert len(panels(figure)) == 4
    for axes, (layer, head) in zip(panels(figure), [(0, 0), (0, 2), (1, 0), (1, 2)], strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array(), seen.weights[layer, head])
    first, last = panels(figure)[0], panels(figure)[-1]
    assert labels(first.yaxis) == ["_o", "gato", "</s>"] and labels(first.xaxis) == []
    assert labels(last.xaxis) == ["the", r"\$cat\$", "</s>"] and labels(last.yaxis) == []
    assert [axes.get_title() for axes in panels(figure)] == ["head 1", "head 3", "", ""]


@pytest.mark.parametrize("kind", TITLES)
def test_a_small_picture_has_room_for_all_its_text(kind):
    figure = draw([Grid(replace(a_map(["a"], ["b"]), kind=kind), [0], [0])])
    width, height = figure.bbox.size
    for text in figure.findobj(Text):
        box = text.get_window_extent()
        assert box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height, text.get_text()


def test_many_heads_and_long_sentences_stay_within_bounds():
    tokens = [f"word{i}" for i in range(50)]
    figure = draw([Grid(a_map(tokens, tokens, 1, 5), [0], range(5))])
    assert len(panels(figure)) == 5 and max(figure.get_size_inches()) < WIDEST + 6
    figure = draw([Grid(a_map(tokens, tokens, 2, 16), [0, 1], range(16))])
    assert figure.get_size_inches()[0] < 60 and len(labels(panels(figure)[0].yaxis)) == 25


def test_a_figure_for_print_is_as_wide_as_its_cells_make_it():
    tokens = [f"token{i}" for i in range(16)]
    grid = Grid(a_map(tokens, tokens, 1, 4), [0], range(4))
    printed, shown = (draw([grid], cell).get_size_inches()[0] for cell in (0.095, None))
    assert 64 * 0.095 < printed < 7.5 < shown


def test_right_to_left_columns_run_from_the_right():
    hebrew = ["▁שלום", "עולם", "2020", "</s>"]
    assert mostly_right_to_left(hebrew) and mostly_right_to_left(["שלום", "</s>"])
    assert not mostly_right_to_left(["a", "b", "שלום"]) and not mostly_right_to_left(["1", "</s>"])
    figure = draw([Grid(a_map(["a"], hebrew), [0, 1], [0])])
    left, right = panels(figure)[0].get_xlim()
    assert left > right
    assert fonts.warnings(hebrew) == [] or not hasattr(ft2font, "__libraqm_version__")


def test_what_no_font_has_is_said(monkeypatch):
    assert fonts.families(["Việt", "\u0378", "a b"]) == (["DejaVu Sans"], [])  # unassigned: nothing to see
    only = {name: file for name, file in fonts._installed().items() if name == "DejaVu Sans"}
    monkeypatch.setattr(fonts, "_installed", lambda: only)
    assert fonts.families(["a中b文"])[1] == ["中", "文"]
    (sentence,) = fonts.warnings(["a中b文"])
    assert "中文" in sentence and "boxes stand for them" in sentence


def test_a_grid_says_its_kind_or_the_title_it_is_given():
    seen = a_map(["a", "b"], ["c"])
    figure = draw([Grid(seen, [0], [0]), Grid(seen, [0], [0], ("QKNorm", "layer 1"))])
    shown = [text.get_text() for text in figure.texts]
    assert shown == [*TITLES["cross"], "QKNorm", "layer 1"]


def test_a_font_that_has_the_rest_is_found(monkeypatch):
    monkeypatch.setattr(fonts, "_installed", lambda: {"First": "1", "Idle": "2", "Second": "3"})
    have = {"1": {ord("a")}, "2": {ord("b")}, "3": {ord("中")}}
    monkeypatch.setattr(fonts, "_characters", have.__getitem__)
    assert fonts.families(["a 中"]) == (["First", "Second"], [])


def test_a_font_installed_since_is_found(monkeypatch, tmp_path):
    """matplotlib lists the fonts of a machine once and keeps the list; damaged files are passed over."""
    manager = fonts.font_manager.fontManager
    file = fonts._installed()["DejaVu Sans Mono"]
    older = [entry for entry in manager.ttflist if entry.name != "DejaVu Sans Mono"]
    monkeypatch.setattr(manager, "ttflist", older)
    (tmp_path / "broken.ttf").write_bytes(b"no font")
    monkeypatch.setattr(fonts.font_manager, "findSystemFonts", lambda: [str(tmp_path / "broken.ttf"), file])
    monkeypatch.setattr(fonts, "_installed", lambda: {"First": "1"})
    monkeypatch.setattr(fonts, "_characters", {"1": {ord("a")}, file: {ord("中")}}.__getitem__)
    assert fonts.families(["a 中"]) == (["First", "DejaVu Sans Mono"], [])


def test_a_family_without_a_bold_face_is_not_told_of(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr("qknorm.analysis.heatmaps.families", lambda _: (["DejaVu Sans", "STIXGeneral"], []))
    figure = draw([Grid(a_map(["a"], ["b"]), [0], [0])])
    bold = [text for text in figure.texts if text.get_weight() == "bold"]
    assert [text.get_fontfamily() for text in bold] == [["DejaVu Sans"]]
    save(figure, tmp_path / "a.png")
    assert caplog.text == ""


def test_an_old_matplotlib_is_said(monkeypatch):
    monkeypatch.delattr(ft2font, "__libraqm_version__", raising=False)
    assert "install 3.11 or newer" in fonts.warnings(["שלום"])[0]
    assert fonts.warnings(["peace"]) == []


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")])
def test_formats(tmp_path, name, start):
    save(draw([Grid(a_map(["a"], ["b", "c"]), [0], [1])]), tmp_path / name)
    written = (tmp_path / name).read_bytes()
    assert written.startswith(start)
    assert b"/Type3" not in written, "publishers refuse such fonts"
