"""Measure one thing: what passes, drafts, modules, threads, workers, clients or starts cost.

Each WHAT is measured in interleaved rounds on an idle machine (--busy: on any), and makes one
table: in the terminal, and in the JSON file of --out. Finished rounds are kept beside that file:
the same command goes on from there.
"""

import argparse
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

from ...cli import arguments
from ...config import DRAFTER_DTYPES
from ...errors import excludes, option_error
from ..analysis.break_even import Mark
from ..measure.traits import drafting
from ..profile import asked
from ..settings import Made, declare_fields, settings
from . import passes
from .pages import check_picture


class What(NamedTuple):
    """Something that is measured, by ``measure`` of the module of its name in ``lab/profile``."""

    help: str  # one line
    title: str | None  # of the table; None: made of what is measured, and --out is not needed
    example: str  # the arguments of an example
    kind: type | None  # what is asked for; None: of breakeven, whose models passes has too
    resumes: bool = True  # whether finished rounds are kept, and ``measure`` takes their journal


MODEL = "data-bin/demo.en-de --path data-bin/demo.en-de/model.pt"
SMALL = "data-bin/demo-small.en-de"

WHATS = {
    "launches": What(
        "what a pass launches on a GPU, and waits for",
        "Launches",
        f"{MODEL} --decoder greedy --out runs/launches.json",
        asked.Launches,
        resumes=False,
    ),
    "breakeven": What(
        "from how many tokens a pass drafting pays",
        None,
        "--arch-size base --decoder assisted --drafter-width 128 --mark tiny=assisted:4:2.9 "
        "--out runs/breakeven.json --plot runs/breakeven.svg",
        None,
    ),
    "modules": What(
        "what decoders consist of: encoder, decoder, vocabulary",
        "Time per module",
        f"{MODEL} --decoder greedy --out runs/modules.json",
        asked.Modules,
    ),
    "threads": What(
        "what several threads, generators and processes give",
        "Threads and processes",
        f"{MODEL} --threads 2,4 --out runs/threads.json",
        asked.Threads,
    ),
    "workers": What(
        "what several processes or a cluster give for a corpus",
        "Workers on a corpus",
        f"{SMALL}/raw/demo.en --model {SMALL} --processes 1,2 --out runs/workers.json",
        asked.Workers,
    ),
    "clients": What(
        "what clients of serve get, beside translate and Python",
        "Clients of a server",
        f"{SMALL}/raw/demo.en --model {SMALL} --out runs/clients.json",
        asked.Clients,
        resumes=False,  # a round depends on the one before it
    ),
    "start-up": What(
        "what an import, help and a first sentence cost",
        "Start-up",
        f"--model {SMALL} --out runs/start-up.json",
        asked.Starts,
    ),
    "training-speed": What(
        "the updates a second of architectures",
        "Training speed",
        "data-bin/multi30k.en-de --arch transformer --arch ibdecoder --out runs/training.json",
        asked.Training,
    ),
}


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of every WHAT."""
    parser.epilog = f"example: paradec profile modules {WHATS['modules'].example}"
    parser.set_defaults(flags=[])
    parsers = parser.add_subparsers(metavar="WHAT", dest="what", required=True)
    own = parsers.add_parser("passes", help="a pass, piece by piece", description=passes.__doc__)
    own.set_defaults(measured=passes.run)
    passes.declare(own)
    for name, what in WHATS.items():
        own = parsers.add_parser(name, help=what.help)
        own.epilog = f"example: paradec profile {name} {what.example}"
        own.set_defaults(measured=_harness(name.replace("-", "_"), what))
        if what.kind is None:
            declare_breakeven(own)
        else:
            own.description = what.kind.__doc__
            declare_fields(what.kind, own)
        arguments.declare_table(own, what.title, required=what.title is not None)


def run(args: argparse.Namespace) -> int:
    """Measure; return the exit status.

    Raises:
        UsageError: flags are given that the WHAT does not take.
    """
    if args.flags and args.what != "training-speed":
        raise excludes("--", True, args.what)
    status: int = args.measured(args)
    return status


def _harness(name: str, what: What) -> Callable[[argparse.Namespace], int]:
    """Return what measures a WHAT, writes its table and prints it."""

    def measured(args: argparse.Namespace) -> int:
        wanted = _breakeven(args) if what.kind is None else settings(what.kind, args)
        from ..data import documents
        from ..profile import harness
        from ..show.table import markdown

        if args.out is not None:
            documents.check_out(args.out)
        module = importlib.import_module(f"..profile.{name}", __package__)
        with arguments.quiet(), harness.journal(name, wanted, args.out) as journal:
            table = module.measure(wanted, journal) if what.resumes else module.measure(wanted)
            if args.out is not None:
                documents.save_made(Made(args.argv, args.out, args.title or table.title), table)
        print(markdown([table]))
        return 0

    return measured


# ---- breakeven ----------------------------------------------------------------------------------


def rates(text: str) -> list[float]:
    """Read a list of numbers from 0 to 1 with commas between them."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = [-1.0]
    if not all(0 <= rate <= 1 for rate in values):
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: numbers from 0 to 1")
    return values


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


def declare_breakeven(parser: argparse.ArgumentParser) -> None:
    """Declare a model, drafts and marks."""
    parser.description = (
        "From how many tokens a pass drafting pays, on this machine. The command decodes for "
        "real. The drafter's passes run and are timed, but its drafts are replaced by greedy "
        "search's own tokens, each right at a chosen rate. So a model's size, an engine and a "
        "dtype tell how good a drafter must be before there is one. Every time is compared with "
        "greedy search in the same engine and dtype, in interleaved rounds. The model is a "
        "checkpoint with a drafter, or random weights of a known size with random drafters. "
        "Sentences are decoded one at a time, on the CPU."
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


def _breakeven(args: argparse.Namespace) -> Any:
    """Return what is asked of ``breakeven``."""
    plot = None if args.plot is None else check_picture("--plot", args.plot)
    if args.beam == 1:
        raise option_error("--beam", 1, "2 or more; without it drafts are of greedy search")
    from ..profile.breakeven import BreakEvenProfile

    made = {"decoders": args.decoder or [], "marks": args.mark, "plot": plot}
    return settings(BreakEvenProfile, args, engines=args.engines.split(","), **made)
