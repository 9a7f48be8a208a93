"""Ids of the special subwords, the same in every vocabulary."""

PAD, UNK, BOS, EOS = 0, 1, 2, 3
"""Padding, unknown, beginning and end of a sentence."""
