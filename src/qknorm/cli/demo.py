"""``qknorm demo``: see it work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qknorm.progress import Progress


def demo(
    to: Annotated[
        Path, typer.Option("--to", metavar="DIR", help="Folder for the text, the two runs and the picture.")
    ] = Path("runs/demo"),
) -> None:
    """Train the paper's model and its baseline on the built-in phrasebook, and compare them.

    Needs no files, no GPU and no network; takes about four minutes on two cores. Prints both BLEUs with the
    p-value and sample translations of unseen phrases, draws where each word of one looks (DIR/heatmap.png),
    and says what to try next.

    \b
      qknorm demo
    """
    from qknorm.demo import run_demo

    run_demo(folder=to, progress=Progress())
