"""Time and judge any decoders on one test set: one model's, or several models'.

Every decoder translates the same sentences in the same process, in rounds in which each sentence is
decoded by all decoders one after the other, each time in another order. The timer covers what a
user waits for: batching, encoder, decoder, detokenised text. fairseq's beam 5 and greedy search and
this package's greedy search are always among the decoders. What was measured is kept after each
round: run the same command again to go on.
"""

import argparse
from pathlib import Path

from ...cli import arguments
from ..measure import CTRANSLATE2, DEFAULT_DECODERS, DTYPES, PEERS
from ..settings import settings


def peers(text: str) -> tuple[str, ...]:
    """Read an argument that is a list of engines with commas between them."""
    found = tuple(dict.fromkeys(text.split(",")))
    if not set(found) <= set(PEERS):
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: {', '.join(PEERS)}, or both")
    return found


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = (
        "example: paradec benchmark data-bin/demo.en-de --path data-bin/demo.en-de/model.pt "
        "--decoder 'pgj --block-size 5' --decoder 'wide=hgj --block-size 12' --rounds 3 "
        "--out runs/demo.json"
    )
    add, number = parser.add_argument, arguments.whole_number
    add("data", metavar="DATA", help="fairseq data folder")
    add("--path", required=True, help="checkpoint whose greedy output is the yardstick")
    add(
        "--decoder",
        action="append",
        metavar="SPEC",
        help="a row: [LABEL=]DECODING and flags of fairseq-generate in one word, for example "
        "'hgj --block-size 8' or 'student=beam --path other.pt --beam 4'; may be given often "
        f"(default: {', '.join(map(repr, DEFAULT_DECODERS))}); fairseq's beam 5 and "
        "greedy search and this package's greedy are always there",
    )
    add("--subset", default="test", help="of DATA (default: test)")
    add("--reference", type=Path, help="plain text (default: DATA/raw/SUBSET.LANG if it is there)")
    add("--sentences", type=number, help="so many, evenly from short to long (default: all)")
    add("--timed", type=number, default=200, help="of them for latency (default: 200)")
    add("--rounds", type=number, default=5, help="timed rounds (default: 5)")
    add(
        "--batch-sizes",
        type=arguments.whole_numbers,
        default=[4, 16, 64, 256],
        help="throughput sweep; it ends early where no decoder gains (default: 4,16,64,256)",
    )
    add(
        "--threads",
        type=arguments.whole_numbers,
        default=[1],
        help="CPU threads; more than one number: latency with each, all else with the first "
        "(default: 1)",
    )
    add("--dtype", choices=DTYPES, default="fp32", help="of all decoders (default: fp32)")
    arguments.declare_device(parser)
    add("--max-len-a", type=arguments.positive, help="fairseq's, for all decoders")
    add("--max-len-b", type=number, help="fairseq's, for all decoders")
    add("--min-len", type=number, help="fairseq's, for all decoders")
    add("--unkpen", type=float, help="fairseq's, for all decoders")
    add("--temperature", type=arguments.positive, help="fairseq's, for all decoders")
    add(
        "--peers",
        nargs="?",
        type=peers,
        const=(CTRANSLATE2,),
        default=(),
        metavar="LIST",
        help=f"other engines on the same checkpoint, too: {', '.join(PEERS)}, or both with a comma "
        f"(without LIST: {CTRANSLATE2}, which is for --device cpu)",
    )
    add("--busy", action="store_true", help="measure on a busy machine too")
    arguments.declare_table(parser, None, "FILE.json; FILE.md and FILE.png go beside it")


def run(args: argparse.Namespace) -> int:
    """Measure, and write the three files."""
    from ..measure.benchmark import Settings, benchmark
    from ..measure.specs import COMMON, read

    limits = {name: getattr(args, name) for name in COMMON if getattr(args, name) is not None}
    decoders = [*map(read, args.decoder or DEFAULT_DECODERS)]
    with arguments.quiet():
        return benchmark(settings(Settings, args, limits=limits, decoders=decoders))
