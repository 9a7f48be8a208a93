"""The report: its numbers are those of the other rooms, and it is one page that shows any text as text."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from qknorm.analysis import pair_attention
from qknorm.analysis.report import render, write_report
from qknorm.errors import UserError
from qknorm.run import Run
from qknorm.scoring import compare, score

HOSTILE = "</script><img src=x onerror=\"document.title='taken'\"> <!-- & \u2028 שלום"


def data_of(page: str) -> dict:
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory) -> str:
    file = tmp_path_factory.mktemp("report") / "report.html"
    write_report(file, runs, maps=3)
    return file.read_text()


def lines(path) -> list[str]:
    return path.read_text().split("\n")[:-1]


def test_its_numbers(page, runs):
    data, corpus = data_of(page), runs[0].path.parent / "corpus"
    references = lines(corpus / "test.tgt")
    ours, theirs = (lines(run.hypotheses_file("test")) for run in runs)
    result = compare(theirs, ours, references)
    assert data["scores"]["tests"][0]["delta"] == result.delta
    assert data["scores"]["tests"][0]["p_value"] == result.p_value
    first = data["scores"]["rows"][0]
    assert first["values"][0] == score(ours, references).main
    assert first["intervals"][0][0] <= first["values"][0] <= first["intervals"][0][1]
    assert len(data["sentences"]) == 12 and data["split"] == "test"
    assert "".join(text for text, _ in data["sentences"][0]["said"][0]) == ours[0]
    assert sum(bucket["count"] for bucket in data["length"][0]) == 12
    assert [run["name"] for run in data["runs"]] == ["qknorm", "baseline"]
    history = data["runs"][0]["history"]
    assert [row["epoch"] for row in history] == [1, 2] and all(row["max_logit"] > 0 for row in history)
    assert all(row["max_logit"] <= row["g_max"] * 1.001 for row in history), "a cosine is at most 1"
    assert data["runs"][1]["modules"][0]["g"] is None and len(data["runs"][0]["modules"]) == 6


def test_its_heat_maps(page, runs):
    data, run = data_of(page), runs[0]
    shown = data["maps"][1]
    sentence = data["sentences"][shown["line"] - 1]
    subwords = run.subwords()
    sources = subwords.encode([sentence["source"]], "source")
    targets = subwords.encode(["".join(text for text, _ in sentence["said"][0])], "target")
    (seen,) = pair_attention(run.model(), subwords, sources, targets)
    packed = shown["runs"][0]["cross"]
    levels = np.frombuffer(base64.b64decode(packed["levels"]), np.uint8).reshape(packed["shape"])
    np.testing.assert_allclose((levels / 255) ** 2, seen.cross.weights, atol=0.005)
    assert packed["rows"] == seen.cross.rows and len(data["maps"]) == 3


def test_it_needs_nothing_from_outside(page):
    assert not re.search(r"(?:src|href)\s*=\s*[\"'](?!#)|@import|url\(", page)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)
    assert "default-src 'none'" in page and "innerHTML" not in page


def with_hostile_text(page: str) -> str:
    data = data_of(page)
    sentence = data["sentences"][data["maps"][0]["line"] - 1]
    sentence["source"], sentence["said"][0] = HOSTILE, [[HOSTILE, 1]]
    data["runs"][0]["name"] = HOSTILE
    for each in data["maps"][0]["runs"]:
        each["cross"]["rows"][0] = each["cross"]["columns"][0] = HOSTILE
    return render(data)


def test_text_cannot_leave_the_data(page):
    hostile = with_hostile_text(page)
    assert hostile.count("</script>") == page.count("</script>") == 2 and "<img" not in hostile
    assert data_of(hostile)["runs"][0]["name"] == HOSTILE


def drawn(page, script, folder):
    """What stands on the page in a browser once a script has run there, and what the browser says."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("needs Chromium")
    (folder / "page.html").write_text(page.replace("</body>", f"<script>{script}</script></body>"))
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}",
         "--enable-logging=stderr", "--virtual-time-budget=2000", "--dump-dom", f"file://{folder}/page.html"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return done.stdout.partition("<script")[0], done.stderr


def test_it_draws_itself_in_a_browser(page, tmp_path):
    """Text that looks like markup is shown as text; arrow keys step through heads; the console is silent."""
    press = "dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight'}))"
    shown, said = drawn(with_hostile_text(page), f"document.querySelector('.both').{press}", tmp_path)
    assert "CONSOLE" not in said, said
    assert shown.count('class="sentence"') == 12 and shown.count('class="map"') == 2
    assert 'aria-live="polite">Layer 1, head 2.' in shown and shown.count("<svg") >= 8
    assert re.search(r'<td style="[^"]+" aria-label="0\.\d\d"', shown)  # what a cell's colour says
    assert "&lt;img src=x" in shown and "<img" not in shown and "<title>taken" not in shown


def test_cells_of_a_map_are_reached_by_keyboard(page, tmp_path):
    """From the one that Tab reaches, arrow keys go to the others, not beyond, and leave the head as it is."""
    keys = ["ArrowUp", "ArrowLeft", "ArrowRight", "ArrowDown", "End", "ArrowRight", "Home", "ArrowRight"]
    press = f"""
        document.querySelector('.map td[tabindex="0"]').focus();
        for (const key of {keys}) document.activeElement.dispatchEvent(
          new KeyboardEvent('keydown', {{key, bubbles: true, cancelable: true}}));
        const cell = document.activeElement;
        document.title = [cell.parentNode.rowIndex, cell.cellIndex, cell.ariaLabel].join(' ');
    """
    shown, said = drawn(page, press, tmp_path)
    assert "CONSOLE" not in said, said
    row, column, weight = re.search(r"<title>(.*)</title>", shown).group(1).split()
    assert (row, column) == ("2", "2")  # the second row under the head, the second column after the names
    assert f" → {data_of(page)['maps'][0]['runs'][0]['cross']['columns'][1]}" in re.sub("<[^>]*>", "", shown)
    said_weight = re.search(r'aria-live="polite">.*: (\d\.\d{3})</p>', shown).group(1)
    assert float(said_weight) == pytest.approx(float(weight), abs=0.0051)
    assert "Layer 1, head 1</p>" in shown and shown.count('<td style="background') > 4
    assert len(re.findall(r'<td [^>]*tabindex="0"', shown)) == 2  # one of each map


def test_one_run_on_dev(runs, tmp_path):
    write_report(tmp_path / "a.html", [runs[1]], split="dev", maps=0)
    data = data_of((tmp_path / "a.html").read_text())
    assert data["split"] == "dev" and data["maps"] == [] and data["scores"]["tests"] == []


def test_runs_that_do_not_compare(runs, tmp_path):
    copy = Run(tmp_path / "copy")
    shutil.copytree(runs[1].path, copy.path)
    copy.replace_recipe(copy.recipe(), {**copy.manifest()["corpus"], "test.source": "other"})
    with pytest.raises(UserError, match="have different test text"):
        write_report(tmp_path / "a.html", [runs[0], copy])
    unfinished = Run(tmp_path / "unfinished")
    shutil.copytree(runs[1].path, unfinished.path)
    unfinished.hypotheses_file("test").unlink()
    with pytest.raises(UserError, match="finish training with"):
        write_report(tmp_path / "a.html", [unfinished], split="test")
    unfinished.hypotheses_file("test").write_text("a\n")
    with pytest.raises(UserError, match="has 1 lines and test has 12; restore it from a copy"):
        write_report(tmp_path / "a.html", [unfinished], split="test")
    assert not (tmp_path / "a.html").exists()
