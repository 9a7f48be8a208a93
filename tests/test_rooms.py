"""The rooms of the package: who imports whom, as CONTRIBUTING.md says."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "qknorm"

COMMON = {"clock", "errors", "ids", "progress", "markdown", "__version__"}
"""What any room above ``nn`` may use: it knows nothing of the others."""
ROOMS = {
    "__init__": {"translation"},
    "nn": set(),
    "errors": set(),
    "ids": set(),
    "markdown": set(),
    "clock": set(),
    "progress": {"clock"},
    "history": {"errors"},
    "workers": {"errors"},
    "model": {"ids", "nn"},
    "data": COMMON,
    "scoring": COMMON,
    "config": {*COMMON, "model"},
    "tensors": {*COMMON, "data"},
    "run": {*COMMON, "config", "data", "history", "model", "tensors"},
    "translation": {*COMMON, "config", "data", "model", "nn", "run", "tensors", "workers"},
    "training": {
        *COMMON, "config", "data", "model", "nn", "run", "scoring", "tensors", "translation", "workers",
    },
    "analysis": {*COMMON, "config", "data", "model", "nn", "run", "scoring", "tensors", "translation"},
    "serving": {*COMMON, "analysis", "data", "run", "scoring", "translation"},
}  # fmt: skip
"""The rooms of the package that each room may import."""
BELOW = {*COMMON, *ROOMS}
ROOMS |= {"paper": BELOW, "demo": BELOW, "cli": BELOW | {"paper", "demo"}, "__main__": {"cli"}}
PACKAGES = {
    "nn": {"torch", "triton"},
    "model": {"torch"},
    "data": {"numpy", "tokenizers", "babel"},
    "scoring": {"numpy", "sacrebleu", "nltk"},
    "config": {"pydantic", "yaml"},
    "tensors": {"torch", "safetensors"},
    "run": {"torch"},
    "translation": {"torch"},
    "training": {"torch", "numpy", "triton", "tensorboard"},
    "analysis": {"torch", "numpy", "matplotlib"},
    "serving": {"torch", "pydantic", "fastapi", "starlette", "uvicorn"},
}
"""The packages beside the standard library that a room may import."""


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module that a file imports, wherever in it; a name taken from qknorm itself as qknorm.NAME."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            whole = node.module == "qknorm"
            yield from ((f"qknorm.{name.name}" for name in node.names) if whole else [str(node.module)])


def room_of(file: Path) -> str:
    return file.relative_to(PACKAGE).with_suffix("").parts[0]


def wrong_imports(room: str, code: str) -> list[str]:
    """What a file of a room imports and may not."""
    wrong = []
    for module in imports(ast.parse(code)):
        first, _, rest = module.partition(".")
        if first == "qknorm":
            other = rest.partition(".")[0]
            allowed = other == room or other in ROOMS[room]
        else:
            known = PACKAGES.get(room)
            allowed = first in sys.stdlib_module_names or known is None or first in known
        if not allowed:
            wrong.append(module)
    return wrong


def test_imports_follow_the_rooms():
    files = sorted(PACKAGE.rglob("*.py"))
    wrong = {str(file): wrong_imports(room_of(file), file.read_text(encoding="utf-8")) for file in files}
    assert len(files) > 100 and {file: found for file, found in wrong.items() if found} == {}


@pytest.mark.parametrize(
    ("room", "code"),
    [
        ("nn", "import numpy"),
        ("nn", "def f():\n    from qknorm.model import Transformer"),
        ("translation", "from qknorm.training import train"),
        ("scoring", "from qknorm.data import lines"),
        ("analysis", "from qknorm.paper.page import table"),
        ("paper", "from qknorm.cli import options"),
        ("serving", "from qknorm import training"),
    ],
)
def test_an_import_back_is_noticed(room, code):
    assert len(wrong_imports(room, code)) == 1
