"""Training: from prepared data to a run folder."""

from qknorm.training.preparation import Prepared, prepare
from qknorm.training.trainer import Trained, Trainer, train

__all__ = ["Prepared", "Trained", "Trainer", "prepare", "train"]
