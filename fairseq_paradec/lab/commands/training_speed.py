"""Measure the training speed of architectures, relative to the first one.

Architectures take turns at updates on the same batches: forward, backward and Adam, by fairseq's
own task and label-smoothed criterion (zhang2020, Table 1, column Train). With --before, each is
compared with itself in an older checkout, by fairseq's own trainer.
"""

import argparse

from ...cli import arguments
from ..settings import settings


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = (
        "After -- come more flags of fairseq-train, for all architectures. example: paradec "
        "training-speed data-bin/multi30k.en-de --arch transformer --arch ibdecoder --out "
        "runs/training-speed.json"
    )
    parser.set_defaults(flags=[])
    add, number = parser.add_argument, arguments.whole_number
    add("data", metavar="DATA", help="fairseq data folder with a training part")
    add(
        "--arch",
        action="append",
        required=True,
        metavar="NAME",
        help="an architecture; may be repeated; the others are compared with the first. With "
        "--before, flags of fairseq-train may follow in the same word, and behind ' + ' flags for "
        "this checkout alone",
    )
    add(
        "--before",
        metavar="CHECKOUT",
        help="an older checkout of this project: compare its updates with this one's instead",
    )
    add("--max-tokens", type=number, default=4096, help="of a batch (default: 4096)")
    add("--batches", type=number, default=10, help="how many different ones (default: 10)")
    arguments.declare_timing(parser, "over the batches ")
    arguments.declare_device(parser)
    arguments.declare_table(parser, "Training speed")


def run(args: argparse.Namespace) -> int:
    """Train all in turns, and write the table."""
    from ..measure.training_speed import Settings, training_speed
    from ..measure.update_speed import update_speed

    work = update_speed if args.before else training_speed
    return work(settings(Settings, args))
