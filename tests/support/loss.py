"""The loss by subword ids, of which the target side has some."""

from torch import Tensor

from qknorm.training.loss import Allowed, loss_over, place_of


def smoothed_loss(
    h: Tensor,
    table: Tensor,
    bias: Tensor | None,
    wanted: Tensor,
    allowed: Allowed | None,
    smoothing: float,
    real: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    if allowed is not None:
        table = table.index_select(0, allowed.ids)
        bias = None if bias is None else bias.index_select(0, allowed.ids)
    return loss_over(h, table, bias, place_of(wanted, allowed), smoothing, real)
