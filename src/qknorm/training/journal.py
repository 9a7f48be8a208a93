"""The history of a run: one JSON line an epoch, and the same for TensorBoard."""

from __future__ import annotations

import math
import shutil
from typing import Any

from qknorm.clock import clock
from qknorm.model import Transformer
from qknorm.nn import attention_modules
from qknorm.run import Run
from qknorm.training.state import State
from qknorm.training.validation import Validation

RUN_AWAY = 500.0
"""A largest logit that is worth a warning; modules that were well had 16 to 53 (results/heads.md)."""


class Journal:
    """Rows are added at the end of epochs; a resume drops those of epochs that will be run again."""

    def __init__(self, folder: Run) -> None:
        self.folder = folder
        self.rows = folder.history()
        self._writer: Any = None

    def rewind(self, epoch: int) -> None:
        """Forget rows of this epoch and later ones: they will be run again."""
        kept = [row for row in self.rows if row["epoch"] < epoch]
        if len(kept) != len(self.rows):
            self.rows = kept
            self.folder.write_history(kept)
            shutil.rmtree(self.folder.tensorboard, ignore_errors=True)
            for row in kept:
                self._to_tensorboard(row)

    def row(
        self, state: State, rate: float, found: Validation, better: bool, model: Transformer
    ) -> dict[str, Any]:
        """What there is to say of the epoch that ends."""
        done = state.totals
        tokens, updates = max(done.tokens, 1), max(done.updates, 1)
        scales = [
            float(m.qk_scale.detach().float().mean())
            for m in attention_modules(model).values()
            if m.qk_scale is not None
        ]
        return {
            "epoch": state.epoch,
            "step": state.step,
            "learning_rate": rate,
            "train_loss": done.loss / tokens,
            "train_perplexity": math.exp(min(done.nll / tokens, 700.0)),
            "dev_perplexity": found.perplexity,
            "dev_bleu": found.bleu,
            "best": better,
            "gradient_norm": done.gradient_norm / updates,
            "skipped": state.skipped,
            "g_min": min(scales, default=None),
            "g_max": max(scales, default=None),
            "max_logit": found.max_logit,
            "tokens_per_second": done.tokens / max(done.seconds, 1e-9),
            "ms_per_step": 1000 * done.seconds / updates,
            "waiting_share": done.waiting / max(done.seconds, 1e-9),
            "seconds": done.seconds,
            "elapsed": state.elapsed,
        }

    def caution(self, row: dict[str, Any]) -> str | None:
        """What the user should know of an epoch that is to be added; None if there is nothing new."""
        before = max((each["max_logit"] for each in self.rows), default=0.0)
        if row["max_logit"] < RUN_AWAY or before >= RUN_AWAY:
            return None
        return (
            f"The largest attention logit has reached {row['max_logit']:,.0f}. Heads with such logits tend "
            "to get stuck on one position; a lower training.learning_rate may prevent it, and "
            "model.qk_norm=l2 does."
        )

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.folder.write_history(self.rows)
        self._to_tensorboard(row)

    def _to_tensorboard(self, row: dict[str, Any]) -> None:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self.folder.tensorboard))
        for key, value in row.items():
            if (
                isinstance(value, int | float)
                and not isinstance(value, bool)
                and key not in ("epoch", "step")
            ):
                self._writer.add_scalar(key, value, row["step"])
        self._writer.flush()

    def left(self, max_steps: int | None) -> float | None:
        """Seconds that the updates to come will take, as long as those of the last epoch; None if unknown."""
        if max_steps is None or not self.rows:
            return None
        row, before = self.rows[-1], self.rows[-2] if len(self.rows) > 1 else None
        if before is None:  # what went before the first update will not come again
            return float(row["seconds"] / row["step"] * (max_steps - row["step"]))
        pace = (row["elapsed"] - before["elapsed"]) / (row["step"] - before["step"])
        return float(pace * (max_steps - row["step"]))

    @staticmethod
    def line(row: dict[str, Any], left: float | None = None) -> str:
        """A row as a line for the user, with the seconds that are left."""
        bleu = "" if row["dev_bleu"] is None else f", dev BLEU {row['dev_bleu']:.2f}"
        g = "" if row["g_min"] is None else f", g {row['g_min']:.1f}…{row['g_max']:.1f}"
        return (
            f"epoch {row['epoch']}: update {row['step']}, loss {row['train_loss']:.3f}, dev perplexity "
            f"{row['dev_perplexity']:.2f}{bleu}{' (best)' if row['best'] else ''}{g}, rate "
            f"{row['learning_rate']:.2e}, {row['tokens_per_second']:.0f} tokens/s"
            f"{'' if left is None else f', {clock(left)} left'}"
        )
