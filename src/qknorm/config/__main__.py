"""`python -m qknorm.config` prints the reference of all settings."""

import sys

from qknorm.config.reference import reference

sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
sys.stdout.write(reference())
