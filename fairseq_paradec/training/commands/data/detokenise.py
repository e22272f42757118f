"""Turn Moses tokens on standard input into plain text, line by line.

Evaluations detokenise translations in the same way.
"""

import argparse
import sys


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("language", metavar="LANG", help="as in de")


def run(args: argparse.Namespace) -> int:
    """Filter standard input."""
    from sacremoses import MosesDetokenizer

    detokenizer = MosesDetokenizer(lang=args.language)
    for line in sys.stdin:
        print(detokenizer.detokenize(line.split()))
    return 0
