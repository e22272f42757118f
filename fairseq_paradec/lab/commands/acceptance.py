"""Measure the share of drafted tokens that a verifier accepts, in every combination of settings.

Each --path has a row for greedy search, then one for each combination of --decoding with the flags
that it reads. Outputs are compared with those of fairseq's own beam-1 search. There are no times,
so the machine may be busy. Finished rows are saved at once; the same command then makes only rows
that are missing, or whose checkpoints, data, flags, plugin or machine have changed.
"""

import argparse
import signal
import sys
from pathlib import Path

from ...cli import arguments
from ...registry import METHODS
from ..measure import DTYPES, SMOKE_SENTENCES
from ..settings import settings


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "%(prog)s DATA --path VERIFIER [--drafter-path DRAFTER] [options] --out FILE"
    parser.epilog = (
        "The options down to --path may be repeated; every combination is measured."
        "\nexamples:\n  paradec acceptance data-bin/multi30k.en-de --path verifier.pt "
        "--drafter-path drafter.pt \\\n    --block-size 5 --block-size 10 --accept-margin 1 "
        "--accept-margin 3 --out results/k.json\n  paradec acceptance data-bin/multi30k.en-de "
        "--decoding blockwise --path base.pt \\\n    --path fine-tuned.pt --accept-topk 1 "
        "--accept-topk 2 --out results/blocks.json"
    )
    add, number = parser.add_argument, arguments.whole_number
    add("data", metavar="DATA", help="a folder that fairseq-preprocess made")
    methods = [name for name in METHODS if name != "greedy"]
    add(
        "--drafter-path",
        action="append",
        help="the checkpoint of the drafter (gad, gad_pp, nat; assisted), or heads trained on "
        "--path (blockwise)",
    )
    add(
        "--decoding",
        action="append",
        choices=methods,
        metavar="D",
        help=f"{', '.join(methods)} (default: gad and gad_pp)",
    )
    add(
        "--block-size",
        type=number,
        action="append",
        help="(default: as the drafter was trained; assisted: 6)",
    )
    add(
        "--draft-confidence",
        type=float,
        action="append",
        help="assisted's probability at which a draft ends (default: 0.4; with a tree 0)",
    )
    add("--draft-tree", type=number, action="append", help="nodes (default: no tree)")
    add(
        "--accept-topk",
        type=number,
        action="append",
        help="gad_pp's beta (default: 3); blockwise's and assisted's k best tokens (default: 1)",
    )
    add(
        "--accept-margin",
        type=float,
        action="append",
        help="tau of gad_pp and assisted (default: 1.0)",
    )
    add("--accept-distance", type=int, action="append", help="blockwise's epsilon, for numbers")
    add("--min-block", type=number, action="append", help="blockwise's l (default: 1)")
    add(
        "--path",
        action="append",
        required=True,
        help="the verifier's checkpoint, or an ensemble's, with ':' between them; repeat it for "
        "more models. blockwise needs a model with heads, or a Transformer and --drafter-path; "
        "among several, a model without heads gets only a greedy row",
    )
    add("--subset", default="valid", help="of DATA (default: valid)")
    add(
        "--raw",
        type=Path,
        help="plain references, one per line, for BLEU and chrF, or ROUGE; images need none: PSNR "
        "is against the targets of DATA",
    )
    add("--max-len-b", type=number, help="fairseq's, for every row (default: 200 for texts)")
    add("--batch-size", type=number, default=1, help="sentences (default: 1)")
    add("--sentences", type=number, help="how many, evenly from short to long (default: all)")
    add("--dtype", choices=DTYPES, default="fp32", help="(default: fp32)")
    arguments.declare_device(parser)
    add(
        "--smoke",
        action="store_true",
        help=f"a try-out: {SMOKE_SENTENCES} sentences, and the first row of each --decoding",
    )
    out = "the JSON; finished rows are kept beside it, in FILE.partial.jsonl"
    arguments.declare_table(parser, "Acceptance", out)


def run(args: argparse.Namespace) -> int:
    """Measure all settings, and write the table."""
    from ..measure.acceptance import SWEPT, Settings, acceptance

    swept = {name: getattr(args, name) or [None] for name in SWEPT}
    decoding = args.decoding or ["gad", "gad_pp"]
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` runs
    try:
        with arguments.quiet():
            return acceptance(settings(Settings, args, swept=swept, decoding=decoding))
    finally:
        signal.signal(signal.SIGTERM, before)
