#!/usr/bin/env python3
"""Cut lines to their first words: data_first_words.py N <TEXT >CUT; without N, all words.

A word is what stands between white space.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Filter standard input; return the exit status."""
    words = int(sys.argv[1]) if len(sys.argv) > 1 else None
    sys.stdin.reconfigure(newline="\n")  # type: ignore[union-attr] # a stray return ends no line
    for line in sys.stdin:
        print(*line.split()[:words])
    return 0


if __name__ == "__main__":
    sys.exit(main())
