"""The loss by subword ids, of which the target side has some."""

from torch import Tensor

from qknorm.training.loss import Allowed, loss_over, output_rows, place_of


def smoothed_loss(
    h: Tensor,
    table: Tensor,
    bias: Tensor | None,
    wanted: Tensor,
    allowed: Allowed | None,
    smoothing: float,
    real: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    return loss_over(h, *output_rows(table, bias, allowed), place_of(wanted, allowed), smoothing, real)
