"""Decode test sets by every lossless variant, and compare with fairseq's --beam 1, token by token.

Exactness is counted, not timed: the command may run beside other work.
"""

import argparse
from pathlib import Path

from ...cli import arguments
from ...errors import needs
from ..measure.exactness import UNTRAINED, kinds
from ..settings import settings


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = (
        "example: paradec lossless data-bin/demo.en-de --path data-bin/demo.en-de/model.pt "
        "--out runs/lossless.json"
    )
    add = parser.add_argument
    add("data", metavar="DATA", help="fairseq data folder")
    add("--path", required=True, help="checkpoint of a Transformer, with heads or without")
    add(
        "--decoding",
        choices=list(kinds()),
        help=f"decoder whose variants are compared; {UNTRAINED}: all that need no drafter "
        f"(default: {UNTRAINED}; with --drafter-path, gad)",
    )
    add("--drafter-path", help="drafter or heads, unless the model of --path has them")
    add(
        "--beams",
        type=arguments.whole_numbers,
        help="of self_draft or assisted: compare n-best lists with fairseq's search of these beams",
    )
    add("--engines", help="with --beams: native, torch or both (default: native,torch)")
    add("--subsets", default="test", help="comma-separated (default: test)")
    add("--batch-sizes", type=arguments.whole_numbers, default=[1, 64], help="(default: 1,64)")
    add("--limit", type=arguments.whole_number, help="sentences per subset (default: all)")
    add("--out", type=Path, required=True, help="JSON file to write")


def run(args: argparse.Namespace) -> int:
    """Decode all subsets by all variants, and write the table."""
    from ..measure.lossless import Settings, lossless
    from ..measure.lossless_beams import ENGINES, lossless_beams

    if args.engines is not None and args.beams is None:
        raise needs("--engines", args.engines, "--beams")
    engines = ENGINES if args.engines is None else args.engines.split(",")
    work = lossless if args.beams is None else lossless_beams
    given = {"subsets": args.subsets.split(","), "beams": args.beams or [], "engines": engines}
    with arguments.quiet():
        return work(settings(Settings, args, **given))
