#!/usr/bin/env python3
"""Turn Moses tokens into plain text, line by line: data_detokenise.py LANG <TOKENS >TEXT.

It is what evaluations do with translations, so that a reference is made in the same way.
"""

from __future__ import annotations

import sys

from sacremoses import MosesDetokenizer


def main() -> int:
    """Filter standard input; return the exit status."""
    detokenizer = MosesDetokenizer(lang=sys.argv[1])
    for line in sys.stdin:
        print(detokenizer.detokenize(line.split()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
