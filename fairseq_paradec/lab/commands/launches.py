"""Say what keeps a pass from being faster on a device: launches, synchronisations, host or device.

Each decoder translates the same sentences, timed, and once more under torch's profiler, which
counts. Beside them stand the decoder's pass over a chunk of fixed width as decoders call it, and
the same in a CUDA graph, which is launched at once. On the CPU there is nothing to launch:
operators are counted.
"""

import argparse

from ...cli import arguments
from ..settings import settings


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = (
        "example: paradec launches data-bin/demo.en-de --path data-bin/demo.en-de/model.pt "
        "--decoder greedy --out runs/launches.json"
    )
    add, number, numbers = parser.add_argument, arguments.whole_number, arguments.whole_numbers
    add("data", metavar="DATA", help="fairseq data folder")
    add("--path", required=True, help="checkpoint of the model")
    add(
        "--decoder",
        action="append",
        required=True,
        metavar="SPEC",
        help="[LABEL=]DECODING [flags of fairseq-generate]; may be repeated",
    )
    add("--subset", default="test", help="of DATA (default: test)")
    add("--sentences", type=number, default=8, help="how many at most (default: 8)")
    add("--batch-sizes", type=numbers, default=[1, 8], help="(default: 1,8)")
    add("--chunks", type=numbers, default=[1, 8], help="tokens of a pass (default: 1,8)")
    arguments.declare_device(parser)
    arguments.declare_table(parser, "Launches")


def run(args: argparse.Namespace) -> int:
    """Measure, and write the table."""
    from ..measure.launches import Settings, launches
    from ..measure.specs import read

    with arguments.quiet():
        return launches(settings(Settings, args, decoders=[*map(read, args.decoder)]))
