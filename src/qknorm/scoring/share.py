"""``python -m qknorm.scoring.share``: counts for another process, texts and sums as JSON."""

import json
import sys

from qknorm.scoring.counts import Texts, count_here


def main() -> None:
    """From standard input to standard output."""
    print(json.dumps(count_here(Texts(*json.load(sys.stdin.buffer)))))


if __name__ == "__main__":
    main()
