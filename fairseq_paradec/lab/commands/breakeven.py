"""Say from how many tokens a pass drafting pays, on this machine.

The command decodes for real. The drafter's passes run and are timed, but its drafts are replaced by
greedy search's own tokens, each right at a chosen rate. So a model's size, an engine and a dtype
tell how good a drafter must be before there is one. Every time is compared with greedy search in
the same engine and dtype, in interleaved rounds. The model is a checkpoint with a drafter, or
random weights of a known size with random drafters. Sentences are decoded one at a time, on the
CPU.
"""

import argparse

from ...cli import arguments
from ...config import DRAFTER_DTYPES
from ...errors import option_error
from ..analysis.break_even import Mark
from ..measure.traits import drafting
from ..settings import settings
from .pages import check_picture


def rates(text: str) -> list[float]:
    """Read a list of numbers from 0 to 1 with commas between them."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [-1.0]
    if not all(0 <= rate <= 1 for rate in found):
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: numbers from 0 to 1")
    return found


def mark(text: str) -> Mark:
    """Read ``NAME=DECODER:K:TOKENS``."""
    name, _, rest = text.rpartition("=")
    try:
        decoder, block_size, tokens = rest.split(":")
        if not name:
            raise ValueError
        return Mark(name, decoder, arguments.whole_number(block_size), arguments.positive(tokens))
    except (ValueError, argparse.ArgumentTypeError):
        allowed = "NAME=DECODER:BLOCK_SIZE:TOKENS_A_PASS, for example tiny=gad:8:2.6"
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: {allowed}") from None


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = (
        "example: paradec breakeven --arch-size base --decoder assisted --drafter-width 128 "
        "--mark tiny=assisted:4:2.9 --out runs/breakeven.json --plot runs/breakeven.svg"
    )
    add, number = parser.add_argument, arguments.whole_number
    arguments.declare_sized_model(parser, "native,native-bf16,native-int8")
    add(
        "--decoder",
        action="append",
        choices=drafting(),
        help="may be repeated (default: those for which there is a drafter)",
    )
    add(
        "--block-sizes",
        type=arguments.whole_numbers,
        default=[4, 8],
        help="as --block-size of the decoders (default: 4,8)",
    )
    add(
        "--rates",
        type=rates,
        default=[0.3, 0.6, 0.8, 0.9, 1.0],
        help="how often a drafted token is right (default: 0.3,0.6,0.8,0.9,1)",
    )
    add(
        "--drafter-width",
        type=number,
        help="with --arch-size: of assisted's drafter (default: the model's width); a multiple of "
        "32",
    )
    add("--drafter-layers", type=number, default=1, help="the same: its decoder's (default: 1)")
    add(
        "--drafter-size",
        choices=arguments.ARCH_SIZES,
        help="with --arch-size: assisted's drafter is a Transformer of this size, encoder and all",
    )
    add("--drafter-shortlist", type=number, help="draft from so many first tokens (default: all)")
    add(
        "--drafter-dtype",
        choices=DRAFTER_DTYPES,
        help="of the drafts' weights (default: the decoders' own)",
    )
    add(
        "--mark",
        action="append",
        type=mark,
        default=[],
        metavar="NAME=DECODER:K:TOKENS",
        help="where a trained pair stands: its block size and tokens a pass; may be repeated",
    )
    add(
        "--beam",
        type=number,
        help="of drafted beams, from 2: by what passes cost, from how many steps a pass self_draft "
        "and assisted with --beam pay; --block-sizes are then steps of a draft, and the TOKENS of "
        "--mark steps",
    )
    add("--subset", default="test", help="of DATA (default: test)")
    add("--sentences", type=number, default=24, help="from short to long (default: 24)")
    arguments.declare_timing(parser, "")
    add("--plot", metavar="FILE", help="picture to write, .png or .svg")
    arguments.declare_table(parser, None, "JSON file to write, for paradec report", required=False)


def run(args: argparse.Namespace) -> int:
    """Measure, print the table, and write the file and the picture."""
    plot = None if args.plot is None else check_picture("--plot", args.plot)
    if args.beam == 1:
        raise option_error("--beam", 1, "2 or more; without it drafts are of greedy search")
    from ..measure.breakeven import Settings, breakeven
    from ..measure.breakeven_beams import breakeven_beams

    made = {"decoders": args.decoder or [], "marks": args.mark, "plot": plot}
    with arguments.quiet():
        work = breakeven if args.beam is None else breakeven_beams
        return work(settings(Settings, args, engines=args.engines.split(","), **made))
