"""The order in which a reordered decoder writes a target, and its attention mask, as flags say.

Each slot of a target has its step, direction, input and position. Flags are those of the reordered
architectures.

--rewrite draws nothing: it prints a file's lines in the order of writing. A plain Transformer that
is trained on them writes in the same order, a token a step, like transformer_both_ends.
"""

import argparse
import io
import sys
from typing import TYPE_CHECKING, Any

from ...cli import arguments
from ...config import flag
from ...errors import excludes, needs, option_error
from . import pages, text_files

if TYPE_CHECKING:  # torch takes seconds to load
    from ...target_order import TargetOrder

#: Words by default and at most: larger drawings are illegible.
LENGTH, LONGEST = 6, 200
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
    if args.words is not None:
        name, given, words = "--words", args.words, args.words.split()
    else:
        length = LENGTH if args.length is None else args.length
        name, given = "--length", str(length)
        words = [f"y{i + 1}" for i in range(min(length, LONGEST + 1))]
    if not 1 <= len(words) <= LONGEST:
        raise option_error(name, given, f"1 to {LONGEST} words")
    return words


def declare(group: Any) -> None:
    """Declare the flags of a group of arguments."""
    add = group.add_argument
    for name, text in NUMBERS.items():
        add(flag(name), type=int, metavar="N", help=f"{text} (default: 1)")
    for name, text in SWITCHES.items():
        add(flag(name), action="store_true", help=text)
    add("--arch", metavar="NAME", help="start from an architecture's order: ibdecoder, sa, ...")
    add("--length", type=arguments.whole_number, metavar="N", help=f"words (default: {LENGTH})")
    add("--words", type=arguments.utf8, metavar="TEXT", help="the target itself")
    add("--rewrite", metavar="FILE", help="print its lines, tokens with spaces, in that order")


def refuse(args: argparse.Namespace) -> None:
    """Refuse these flags with another kind."""
    for name in (*NUMBERS, *SWITCHES, "arch", "length", "words", "rewrite"):
        if (given := getattr(args, name)) not in (None, False):
            raise needs(flag(name), given, "--kind order")


def run(args: argparse.Namespace) -> int:
    """Draw, or rewrite."""
    from ... import register
    from ..show import target_order_view as view

    register()  # the architectures
    targets = ("length", "words", "rewrite")
    given = [name for name in targets if getattr(args, name) is not None]
    for name in given[1:]:
        raise excludes(flag(name), getattr(args, name), flag(given[0]))
    if isinstance(sys.stdout, io.TextIOWrapper):
        if args.rewrite is None:
            sys.stdout.reconfigure(errors="backslashreplace")
        else:  # data, not for a terminal
            sys.stdout.reconfigure(encoding="utf-8")
    order = chosen_order(args)
    if args.rewrite is not None:
        if args.picture is not None:
            raise excludes("--picture", str(args.picture), "--rewrite, which draws nothing")
        for line in text_files.sentences("--rewrite", args.rewrite, text_files.REFERENCE):
            print(" ".join(view.written(order, line.split())))
        return 0
    drawn = view.drawing(order, words_of(args))
    if args.picture is not None:
        pages.warn_of_fonts("trace", view.draw(drawn, args.picture))
    print(view.as_text(drawn))
    return 0
