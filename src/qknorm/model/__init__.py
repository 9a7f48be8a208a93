"""The encoder-decoder Transformer assembled from ``qknorm.nn``."""

from qknorm.model.settings import ModelSettings
from qknorm.model.transformer import DecoderState, Transformer

__all__ = ["DecoderState", "ModelSettings", "Transformer"]
