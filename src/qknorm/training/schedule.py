"""Learning rates: the paper's plateau, inverse square root, cosine and linear; and AdEMAMix's numbers."""

from __future__ import annotations

import math

from qknorm.config import TrainingSettings


def peak_rate(settings: TrainingSettings, d_model: int) -> float:
    """The rate after warm-up: as set, or d^-½ · warmup^-½."""
    if settings.learning_rate is not None:
        return settings.learning_rate
    return float(d_model**-0.5 * max(settings.warmup_steps, 1) ** -0.5)


def rate_at(step: int, settings: TrainingSettings, peak: float, factor: float, total: int) -> float:
    """The learning rate of update number ``step`` (the first is 1), out of ``total``.

    ``factor`` is what the plateau schedule has come down to.
    """
    warmup = settings.warmup_steps
    if step < warmup:
        return peak * step / warmup
    if settings.schedule == "plateau":
        return peak * factor
    if settings.schedule == "inverse_sqrt":
        return peak * math.sqrt(max(warmup, 1) / step)
    held = warmup + settings.hold_steps
    left = 1.0 - (step - held) / max(total - held, 1)
    left = min(max(left, 0.0), 1.0)
    if settings.schedule == "cosine":
        left = 0.5 - 0.5 * math.cos(math.pi * left)
    return peak * (settings.final_rate + (1.0 - settings.final_rate) * left)


def slow_at(step: int, settings: TrainingSettings) -> tuple[float, float]:
    """AdEMAMix's weight of the slow mean at update number ``step``, and how far that mean moves."""
    if settings.optimizer != "ademamix":
        return 0.0, 0.0
    done = min(step / (settings.max_steps or 1), 1.0)
    half_lives = [-1.0 / math.log2(max(beta, 1e-9)) for beta in (settings.beta1, settings.slow_beta)]
    half_life = half_lives[0] + done * (half_lives[1] - half_lives[0])
    return settings.slow_weight * done, -math.expm1(-math.log(2.0) / half_life)


def decays(bleus: list[float], patience: int) -> bool:
    """Whether the newest dev BLEU is below the lowest of the ``patience`` before it."""
    return len(bleus) > patience and bleus[-1] < min(bleus[-1 - patience : -1])
