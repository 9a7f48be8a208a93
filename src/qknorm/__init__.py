"""Query-key normalised attention, and low-resource machine translation built on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qknorm.translation.translator import Translator

__version__ = "0.1.0.dev0"
__all__ = ["Translator", "__version__"]


def __getattr__(name: str) -> object:
    """``Translator`` on demand: the layers alone need none of what it imports."""
    if name == "Translator":
        from qknorm.translation.translator import Translator

        return Translator
    raise AttributeError(f"module 'qknorm' has no attribute {name!r}")
