"""Split sentence pairs into train, valid and test by a hash of their English side.

The step reads lines ENGLISH TAB OTHER, without further columns, and writes
DIR/{train,valid,test}.LANG. All translations of an English sentence go to one split, which depends
on the sentence alone. Valid and test hold one translation of each, always the same one.
"""

import argparse
import hashlib
import sys
from contextlib import ExitStack
from pathlib import Path

SPLITS = ("train", "valid", "test")


def number(text: str) -> int:
    """Return a hash of a text."""
    return int(hashlib.sha256(text.encode()).hexdigest(), 16)


def split_of(english: str, valid: int, test: int) -> str:
    """Return the split of a sentence; ``valid`` and ``test`` are shares in a thousand."""
    place = number(english) % 1000
    return "test" if place < test else "valid" if place < test + valid else "train"


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("dir", type=Path)
    parser.add_argument("languages", nargs=2, metavar="LANG", help="English, then the other")
    parser.add_argument("--min-words", type=int, default=1, help="of the English side")
    parser.add_argument("--max-words", type=int, default=sys.maxsize, help="of the English side")
    parser.add_argument("--valid", type=int, required=True, help="share in a thousand")
    parser.add_argument("--test", type=int, required=True, help="share in a thousand")


def run(args: argparse.Namespace) -> int:
    """Split standard input."""
    pairs: dict[str, list[str]] = {}
    for line in sys.stdin.buffer:
        columns = [" ".join(column.split()) for column in line.decode().split("\t")]
        if len(columns) < 2 or not columns[0] or not columns[1]:
            continue
        if args.min_words <= len(columns[0].split()) <= args.max_words:
            others = pairs.setdefault(columns[0], [])
            if columns[1] not in others:
                others.append(columns[1])

    counts = dict.fromkeys(SPLITS, 0)
    with ExitStack() as stack:
        files = {
            (split, language): stack.enter_context(
                (args.dir / f"{split}.{language}").open("w", encoding="utf-8", newline="\n")
            )
            for split in SPLITS
            for language in args.languages
        }
        for english, others in pairs.items():
            split = split_of(english, args.valid, args.test)
            for other in others if split == "train" else [min(others, key=number)]:
                files[split, args.languages[0]].write(english + "\n")
                files[split, args.languages[1]].write(other + "\n")
                counts[split] += 1
    shares = ", ".join(f"{split} {counts[split]}" for split in SPLITS)
    print(f"  {len(pairs)} different English sentences; pairs: {shares}", file=sys.stderr)
    return 0
