"""Say what a pass costs on this machine, and how far that is from what it could cost.

The command times the decoder's pass over chunks of several lengths (torch's also piece by piece),
the encoder, a drafter's pass, prediction heads and, for comparison, whole searches, fairseq's and
CTranslate2's among them. Engines take turns, in interleaved rounds. Beside each time stands the
least that the part can take: what it reads over the machine's bandwidth, or what it computes over
the machine's peak, both measured in the same rounds. The model is a checkpoint, or random weights
of a known size: a pass takes as long. All runs on the CPU.
"""

import argparse
from pathlib import Path

from ...cli import arguments
from ..settings import settings


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = (
        "example: paradec profile passes --arch-size base --engines native,torch --chunks 1,5"
    )
    add, number = parser.add_argument, arguments.whole_number
    numbers = arguments.whole_numbers
    arguments.declare_sized_model(parser, "native,torch")
    add("--chunks", type=numbers, default=[1, 2, 4, 9, 26], help="tokens (default: 1,2,4,9,26)")
    add(
        "--block-sizes",
        type=numbers,
        default=[10],
        help="masks in a drafter's pass, behind 5 new tokens; the first also for the heads of "
        "--arch-size, and for the methods of --acceptance that do not say theirs (default: 10)",
    )
    add("--batch", type=number, default=1, help="sentences (default: 1)")
    add("--source-length", type=number, default=14, help="with </s> (default: 14)")
    add("--cached", type=number, default=10, help="tokens in front of a chunk (default: 10)")
    add("--repetitions", type=number, default=20, help="of a pass in a round (default: 20)")
    add("--peers", action="store_true", help="CTranslate2's time per token, too")
    add("--memory-mib", type=number, default=1024, help="large tensor to be read (default: 1024)")
    add("--matrix", type=number, default=1024, help="size of matrices for peaks (default: 1024)")
    add(
        "--acceptance",
        type=Path,
        metavar="FILE",
        help="a benchmark's JSON: estimate sentences from its numbers of passes",
    )
    arguments.declare_timing(parser, "")
    arguments.declare_table(parser, None, "JSON file to write, for paradec report", required=False)


def run(args: argparse.Namespace) -> int:
    """Measure, print the tables and write the file."""
    from ..measure.passes.bench import PassSettings
    from ..measure.passes.table import passes

    with arguments.quiet():
        return passes(settings(PassSettings, args, engines=args.engines.split(",")))
