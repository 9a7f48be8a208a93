"""Query-key normalised attention, and low-resource machine translation built on it."""

__version__ = "0.1.0.dev0"
