"""Training: from prepared data to a run folder."""

from qknorm.training.members import Trained, train
from qknorm.training.preparation import Prepared, prepare
from qknorm.training.trainer import Trainer

__all__ = ["Prepared", "Trained", "Trainer", "prepare", "train"]
