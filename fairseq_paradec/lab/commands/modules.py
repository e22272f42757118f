"""Measure where decoders' time goes, in milliseconds per sentence and module.

This is Table 7 of Xia et al. 2022, for any decoder of this package. Sentences are decoded one by
one, warm, and decoders take turns at each sentence. The clocks inside the decoder slow it down a
little: paradec benchmark compares speed.
"""

import argparse

from ...cli import arguments
from ..settings import settings


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = (
        "example: paradec modules data-bin/demo.en-de --path data-bin/demo.en-de/model.pt "
        "--decoder greedy --out runs/modules.json"
    )
    add, number = parser.add_argument, arguments.whole_number
    add("data", metavar="DATA", help="fairseq data folder")
    add("--path", required=True, help="checkpoint of the verifier")
    add(
        "--decoder",
        action="append",
        required=True,
        metavar="SPEC",
        help="[LABEL=]DECODING [flags of fairseq-generate], of this package; may be repeated",
    )
    add("--subset", default="test", help="(default: test)")
    add("--sentences", type=number, default=200, help="how many at most (default: 200)")
    arguments.declare_timing(parser, "")
    arguments.declare_device(parser)
    arguments.declare_table(parser, "Time per module")


def run(args: argparse.Namespace) -> int:
    """Profile all decoders, and write the table."""
    from ..measure.modules import Settings, modules
    from ..measure.specs import read

    return modules(settings(Settings, args, decoders=[*map(read, args.decoder)]))
