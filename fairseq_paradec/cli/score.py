"""Score given translations by a model folder: log-probabilities, by line or by token.

SOURCE and TARGET are files of plain text, a sentence a line; the text is processed as paradec
translate does it. A line of output is the mean log-probability (natural) of a translation's tokens,
with </s>; fairseq-generate --score-reference prints it to base 2. Where nothing is scored it is
empty, and a warning says why.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from ..config import ALL, ENGINE_FLAGS, OPTIONS, flag
from ..errors import option_error
from ..methods.describe import flag_help
from . import arguments
from .translate import load, read_lines

#: Flags of fairseq's search that this command has.
SEARCH = ("lenpen", "unnormalized")


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.set_defaults(plugin=False)
    parser.epilog = "example: paradec score --model data-bin/demo.en-de test.en test.de"
    add, number = parser.add_argument, arguments.whole_number
    add("source", metavar="SOURCE", type=Path, help="sentences")
    add("target", metavar="TARGET", type=Path, help="a translation of each")
    add("--model", metavar="DIR", required=True, help=arguments.MODEL)
    arguments.declare_languages(parser)
    add(
        "--tokens",
        action="store_true",
        help="lines of JSON: score, tokens, and the log-probability of each token in scores",
    )
    add("--device", choices=("cpu", "cuda"), default="cpu", help="(default: cpu)")
    add("--threads", type=arguments.number_of_threads, help="CPU threads (default: all cores)")
    add("--batch-size", type=number, help="sentences scored together (default: 32)")
    add("--max-tokens", type=number, help="source tokens scored together (default: 4000)")
    add("--buffer-size", type=number, help="lines sorted by length together (default: 512)")
    for name in SEARCH:
        option = ALL[name]
        if option.kind is bool:
            add(flag(name), action="store_true", help=option.help)
        else:
            add(flag(name), type=option.kind, help=f"{option.help} (default: {option.default:g})")
    for name in ENGINE_FLAGS:
        text = flag_help(name).replace("%", "%%")
        add(flag(name), type=OPTIONS[name].kind, metavar=name.upper(), help=text)


def run(args: argparse.Namespace) -> int:
    """Score the translations."""
    for path in (args.source, args.target):
        if not path.exists() or path.is_dir():
            raise option_error("FILE", str(path), "a text file")
    with arguments.warnings_alone():
        for line in lines_of(args):
            print(line)
    return 0


def lines_of(args: argparse.Namespace) -> Iterator[str]:
    """Yield a line of output for each translation."""
    from tqdm import tqdm

    names = (*SEARCH, *ENGINE_FLAGS, "batch_size", "max_tokens", "buffer_size")
    given = {name: getattr(args, name) for name in names}
    options = {name: value for name, value in given.items() if value not in (None, False)}
    sources, targets = read_lines([args.source]), read_lines([args.target])
    total = sum(1 for _ in read_lines([args.source])) if args.source.is_file() else None
    scores = load(args).score(sources, targets, **options)
    hidden = True if sys.stdout.isatty() else None  # None: shown in a terminal
    for number, score in enumerate(tqdm(scores, total=total, unit=" lines", disable=hidden), 1):
        if score.problem is not None:
            print(f"line {number}: {score.problem}; it has no score", file=sys.stderr)
        if args.tokens:
            fields = {"score": score.score, "tokens": score.tokens, "scores": score.scores}
            yield json.dumps(fields, ensure_ascii=False)
        else:
            yield "" if score.score is None else f"{score.score:.4f}"
