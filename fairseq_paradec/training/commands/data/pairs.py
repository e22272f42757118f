"""Clean raw text, or filter training pairs: two steps of the data recipes on files of pairs.

`clean` leaves one line a sentence and plain spaces only, so that every later tool counts the same
lines. `filter` drops pairs that are empty, too long, or too different in length, by the first two
files; the other two (the raw text) lose the same lines.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TextIO

from ....errors import UsageError


def lines_of(files: list[TextIO]) -> Iterator[tuple[str, ...]]:
    """Yield the lines of parallel files side by side.

    Raises:
        UsageError: one is shorter.
    """
    while True:
        lines = tuple(file.readline() for file in files)
        if not all(lines):
            if any(lines):
                short = ", ".join(file.name for file, line in zip(files, lines) if not line)
                raise UsageError(f"fewer lines than its partner: {short}")
            return
        yield lines


def clean(line: str) -> str:
    """Replace every run of white space (tabs, no-break and line separators) by a space.

    Some tools take characters such as U+2028 for the end of a line.
    """
    return " ".join(line.split())


def keep(source: str, target: str, max_tokens: int | None, max_ratio: float | None) -> bool:
    """Return whether to keep a training pair, by its lengths in tokens."""
    short, long = sorted((len(source.split()), len(target.split())))
    return (
        short > 0
        and (max_tokens is None or long <= max_tokens)
        and (max_ratio is None or long <= max_ratio * short)
    )


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("clean")
    command.add_argument("--lines", type=int, help="only the first N pairs")
    command.add_argument("files", nargs=4, type=Path, help="two to read, then two to write")
    command = commands.add_parser("filter")
    command.add_argument("--max-tokens", type=int)
    command.add_argument("--max-ratio", type=float)
    command.add_argument("files", nargs=8, type=Path, help="four to read, then four to write")


def run(args: argparse.Namespace) -> int:
    """Clean or filter."""
    half = len(args.files) // 2
    with ExitStack() as stack:
        # newline="\n": a stray carriage return ends no line.
        inputs, outputs = (
            [stack.enter_context(path.open(mode, encoding="utf-8", newline="\n")) for path in paths]
            for mode, paths in (("r", args.files[:half]), ("w", args.files[half:]))
        )
        seen = written = 0
        pairs = lines_of(inputs)
        for lines in islice(pairs, args.lines) if args.command == "clean" else pairs:
            seen += 1
            if args.command == "clean":
                lines = tuple(map(clean, lines))
            elif keep(lines[0], lines[1], args.max_tokens, args.max_ratio):
                lines = tuple(line.rstrip("\n") for line in lines)
            else:
                continue
            written += 1
            for line, file in zip(lines, outputs):
                file.write(line + "\n")
    if not written:
        raise UsageError(f"no sentence pairs left of {seen}: {args.files[0]}")
    if written < seen:
        print(f"  {seen - written} of {seen} training pairs dropped", file=sys.stderr)
    return 0
