"""``python -m qknorm``: the same as the ``qknorm`` command."""

from qknorm.cli import main

if __name__ == "__main__":
    main()
