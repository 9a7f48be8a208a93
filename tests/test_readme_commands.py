"""The commands the README and the docs show, run as they stand, on small files under the names they use.

The preset is replaced: what it would choose for these few pairs is trained for hours. The figures of
`qknorm heads` are left empty: they take seconds. And the server is not run: it would never end.
"""

import io
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="needs the server's packages: pip install qknorm[serve]")

import uvicorn
from matplotlib.figure import Figure

import qknorm.cli
import qknorm.config
import qknorm.serving.server
from qknorm.analysis import study_page
from qknorm.config import Preset, dump_recipe
from qknorm.progress import Progress
from qknorm.serving.server import bind
from qknorm.training import train
from support.tiny import tiny_recipe, write_corpus

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("guide", "analysis", "serving"))]
SHOWN = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)


def commands(page: Path) -> list[str]:
    lines = [line for block in SHOWN.findall(page.read_text()) for line in block.split("\n")]
    return [line.partition("  #")[0].strip() for line in lines if line.startswith("qknorm ")]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with every file the pages name, and the tiny settings as the preset."""
    corpus = write_corpus(tmp_path / "corpus", train=80)
    for split, side, name in (
        ("train", "src", "train.gl"),
        ("train", "tgt", "train.en"),
        ("test", "src", "new.gl"),
        ("test", "tgt", "ref.en"),
        ("test", "tgt", "system.en"),
    ):
        (tmp_path / name).write_text((corpus / f"{split}.{side}").read_text())
    swapped = (tmp_path / "ref.en").read_text().replace("cat", "dog")
    for name in ("hyp.en", "baseline.en"):
        (tmp_path / name).write_text(swapped)
    for side, code in (("src", "gl"), ("tgt", "en")):
        for file in list(corpus.glob(f"*.{side}")):
            shutil.copy(file, file.with_suffix(f".{code}"))
    recipe = tiny_recipe(corpus, "data.source=gl", "data.target=en", "training.max_epochs=1")
    (tmp_path / "gl-en.yaml").write_text(dump_recipe(recipe))
    tiny = tiny_recipe(corpus).model_dump(mode="json")
    chosen = {section: tiny[section] for section in ("model", "training", "decoding")}
    chosen["subwords"] = {"operations": 30}
    monkeypatch.setattr(qknorm.config, "preset", lambda pairs, *_: Preset(chosen, [f"{pairs} pairs: tiny"]))
    monkeypatch.setattr(qknorm.serving.server, "bind", lambda host, _: bind(host, 0))
    monkeypatch.setattr(uvicorn.Server, "run", lambda *_, **__: None)  # it would serve until it is stopped
    for name in ("measures_figure", "map_figure", "importance_figure"):
        monkeypatch.setattr(study_page, name, lambda _: Figure())  # drawn in the tests of their room
    monkeypatch.setenv("QKNORM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train_runs(folder: Path) -> None:
    """The runs that the pages about trained models name; as deep as the layer one of them asks for."""
    deep = "model.decoder_layers=6", "training.max_epochs=1"
    recipe = tiny_recipe(folder / "corpus", *deep)
    train(recipe, folder / "runs" / "gl-en", device="cpu", progress=Progress(quiet=True))
    for name in ("qknorm", "baseline"):
        shutil.copytree(folder / "runs" / "gl-en", folder / "runs" / name)
    for split, name in (("test.src", "news.en"), ("test.tgt", "news.vi")):
        shutil.copy(folder / "corpus" / split, folder / name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_shown_commands_run(page, folder, monkeypatch):
    shown = commands(page)
    assert len(shown) >= 3
    if not any(command.startswith("qknorm train") for command in shown):
        train_runs(folder)
    for command in shown:
        words, _, to = command.partition(" > ")
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        monkeypatch.setattr(sys, "argv", shlex.split(words))
        monkeypatch.setattr(sys, "stdout", out)
        with pytest.raises(SystemExit) as ended:
            qknorm.cli.main()
        assert not ended.value.code, command
        out.flush()
        if to:
            (folder / to.strip()).write_bytes(out.buffer.getvalue())
            assert (folder / to.strip()).read_text().count("\n") == 8, command
