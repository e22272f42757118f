"""Cut the lines of standard input to their first N words; without N, normalise their spaces.

Words are separated by white space.
"""

import argparse
import sys


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("words", nargs="?", type=int, metavar="N")


def run(args: argparse.Namespace) -> int:
    """Filter standard input."""
    sys.stdin.reconfigure(newline="\n")  # type: ignore[union-attr] # a stray return ends no line
    for line in sys.stdin:
        print(*line.split()[: args.words])
    return 0
