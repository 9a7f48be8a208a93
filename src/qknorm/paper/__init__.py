"""Each table and figure of the paper as one list of rows, trained by ``qknorm reproduce``."""

from qknorm.paper.experiments import PAIRS, TARGETS
from qknorm.paper.plan import check_overrides, check_systems, choose_targets
from qknorm.paper.reproduce import Reproduced, Wish, reproduce

__all__ = [
    "PAIRS",
    "TARGETS",
    "Reproduced",
    "Wish",
    "check_overrides",
    "check_systems",
    "choose_targets",
    "reproduce",
]
