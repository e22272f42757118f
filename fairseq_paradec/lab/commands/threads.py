"""Say what more cores give: one generator on several threads, or several generators.

Generators with one thread each run in threads of one process, where they share the weights, or in
processes. All decode the same sentences, one at a time, in interleaved rounds, on the CPU.
"""

import argparse

from ...cli import arguments
from ..settings import settings


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = (
        "example: paradec threads data-bin/demo.en-de --path data-bin/demo.en-de/model.pt "
        "--threads 2,4 --out runs/threads.json"
    )
    add, number = parser.add_argument, arguments.whole_number
    add("data", metavar="DATA", help="fairseq data folder")
    add("--path", required=True, help="checkpoint of the model")
    add("--drafter-path", metavar="FILE", help="a block_nat drafter of it: gad is measured, too")
    add(
        "--decoder",
        action="append",
        metavar="SPEC",
        help="[LABEL=]DECODING [flags of fairseq-generate]; may be repeated (default: greedy, and "
        "gad with --drafter-path, on the native engine in fp32 and int8)",
    )
    numbers = arguments.whole_numbers
    add("--threads", type=numbers, default=[2], help="numbers besides 1, with commas (default: 2)")
    add("--subset", default="test", help="(default: test)")
    add("--sentences", type=number, default=200, help="how many at most (default: 200)")
    add("--rounds", type=number, default=5, help="(default: 5)")
    add("--busy", action="store_true", help="measure on a busy machine too; the result says so")
    arguments.declare_table(parser, "Threads and processes")


def run(args: argparse.Namespace) -> int:
    """Measure, and write the table."""
    from ..measure.specs import read
    from ..measure.threads import Settings, threads

    return threads(settings(Settings, args, decoders=[*map(read, args.decoder or ())]))
