"""What the README and the docs show is run, and the lines they quote are in the source."""

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(page: Path, language: str):
    return [(info.strip(), body) for name, info, body in BLOCK.findall(page.read_text()) if name == language]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_examples_run_as_shown(page):
    for info, body in blocks(page, "python"):
        if info.startswith("source=") or ">>>" in body:
            continue
        exec(compile(body, str(page), "exec"), {})
    shown = "\n".join(body for info, body in blocks(page, "python") if ">>>" in body)
    test = doctest.DocTestParser().get_doctest(shown, {}, page.name, str(page), 0)
    said = []
    doctest.DocTestRunner().run(test, out=said.append)
    assert not said, "".join(said)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_quoted_lines_are_in_the_source(page):
    for info, body in blocks(page, "python"):
        if info.startswith("source="):
            lines = (ROOT / info.removeprefix("source=")).read_text().split("\n")
            for line in body.rstrip("\n").split("\n"):
                assert line in lines, f"{page.name} quotes {line.strip()!r}, which {info} no longer has"


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "results").glob("*.md"))], ids=str
)
def test_links_lead_somewhere(page):
    for target in re.findall(r"(?:\]\(|src=\")([^)#\"]+)[)\"]", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_layers_need_torch_alone():
    """Importing them (and the model) loads no package but torch, its needs, and the standard library."""
    code = """
import sys
import torch
import torch.export, torch.library
before = set(sys.modules)
import qknorm.nn, qknorm.model
new = {name.partition(".")[0] for name in set(sys.modules) - before}
ours = {"numpy", "tokenizers", "sacrebleu", "nltk", "pydantic", "yaml", "typer", "babel", "safetensors"}
print(sorted(new & ours))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_demo_runs():
    demo = [sys.executable, str(ROOT / "examples" / "layers.py")]
    done = subprocess.run(demo, capture_output=True, text=True, check=True)
    assert "[0.99962, 0.00034, 0.00005]" in done.stdout and done.stderr == ""
