"""Draw the order in which a reordered decoder writes a target, and its attention mask.

Each slot of a target has its step, direction, input and position. Flags are those of the reordered
architectures.

--rewrite draws nothing: it prints a file's lines in the order of writing. A plain Transformer that
is trained on them writes in the same order, a token a step, like transformer_both_ends.
"""

import argparse
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...cli import arguments
from ...config import flag
from ...errors import excludes, option_error
from . import pages, text_files

if TYPE_CHECKING:  # torch takes seconds to load
    from ...target_order import TargetOrder

# Larger drawings are illegible.
LONGEST = 200
NUMBERS = {
    "directions": "1, 2 (from both ends), or an even number (both ends of H/2 segments)",
    "tokens_per_direction": "tokens that each direction writes per step",
}
SWITCHES = {
    "right_to_left": "with one direction: from the end",
    "double_token": "pairs of tokens as in Imamura and Sumita 2020",
    "middle_to_side": "with two directions: from the middle to both ends",
    "alternate_ends": "with two directions or more: in turns, one token a step",
    "independent_directions": "no direction sees another",
    "vanilla_mask": "the plain causal mask",
    "vanilla_positions": "positions 0, 1, 2, ... as written",
}


def chosen_order(args: argparse.Namespace) -> "TargetOrder":
    """Build the order from the flags, and from the preset where no flag is given.

    Raises:
        UsageError: they contradict each other.
    """
    from ...plugin.models.building import SIZES
    from ...plugin.models.reordered_transformer import PRESETS, read_order, take_preset

    preset: dict[str, Any] = {}
    if args.arch is not None:
        names = {name + size: name for name in PRESETS for size in SIZES}
        if args.arch not in names:
            raise option_error("--arch", args.arch, ", ".join(PRESETS))
        preset = PRESETS[names[args.arch]]
    chosen = argparse.Namespace(**vars(args))
    take_preset(chosen, preset)
    return read_order(chosen)


def words_of(args: argparse.Namespace) -> list[str]:
    """Return the target to draw.

    Raises:
        UsageError: it has no words, or too many.
    """
    words = [f"y{i + 1}" for i in range(min(args.length, LONGEST + 1))]
    flag, given = "--length", str(args.length)
    if args.words is not None:
        words, flag, given = args.words.split(), "--words", args.words
    if not 1 <= len(words) <= LONGEST:
        raise option_error(flag, given, f"1 to {LONGEST} words")
    return words


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = "example: paradec order --arch ibdecoder --length 8"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    for name, text in NUMBERS.items():
        add(flag(name), type=int, metavar="N", help=f"{text} (default: 1)")
    for name, text in SWITCHES.items():
        add(flag(name), action="store_true", help=text)
    add("--arch", metavar="NAME", help="start from an architecture's order: ibdecoder, sa, ...")
    target = parser.add_mutually_exclusive_group()
    target.add_argument(
        "--length", type=arguments.whole_number, default=6, metavar="N", help="words (default: 6)"
    )
    target.add_argument(
        "--words", type=arguments.utf8, metavar="TEXT", help="the target itself, words with spaces"
    )
    target.add_argument("--rewrite", metavar="FILE", help="tokens with spaces, a target a line")
    add("--out", type=Path, metavar="FILE", help="also write a picture, .png or .svg")


def run(args: argparse.Namespace) -> int:
    """Draw, or rewrite."""
    from ..show import target_order_view as view

    if isinstance(sys.stdout, io.TextIOWrapper):
        if args.rewrite is None:
            sys.stdout.reconfigure(errors="backslashreplace")
        else:  # data, not for a terminal
            sys.stdout.reconfigure(encoding="utf-8")
    order = chosen_order(args)
    if args.rewrite is not None:
        if args.out is not None:
            raise excludes("--out", str(args.out), "--rewrite, which draws nothing")
        for line in text_files.sentences("--rewrite", args.rewrite, text_files.REFERENCE):
            print(" ".join(view.written(order, line.split())))
        return 0
    drawn = view.drawing(order, words_of(args))
    if args.out is not None:
        view.draw(drawn, pages.check_picture("--out", str(args.out)))
    print(view.as_text(drawn))
    return 0
