"""Measure the share of drafted tokens that a verifier accepts, in every combination of settings.

Each --path has a row for greedy search, then one for each combination of --decoding with the flags
that it reads. Outputs are compared with those of fairseq's own beam-1 search. There are no times,
so the machine may be busy. Finished rows are saved at once; the same command then makes only rows
that are missing, or whose checkpoints, data, flags, plugin or machine have changed.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from ..measure import DTYPES, SMOKE_SENTENCES
from ..methods.registry import METHODS
from . import arguments


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "%(prog)s DATA --path VERIFIER [--drafter-path DRAFTER] [options] --out FILE"
    parser.epilog = (
        "Each of the options down to --path may be given several times: all combinations are made."
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
        help="the drafter's checkpoint; for nat, which drafts without a verifier, too; for "
        "blockwise, heads that were trained on --path",
    )
    add(
        "--decoding",
        action="append",
        choices=methods,
        metavar="D",
        help=f"{', '.join(methods)} (default: gad and gad_pp)",
    )
    add("--block-size", type=number, action="append", help="(default: as the drafter was trained)")
    add(
        "--accept-topk",
        type=number,
        action="append",
        help="gad_pp's beta (default: 3), and how many of the best blockwise accepts (default: 1)",
    )
    add("--accept-margin", type=float, action="append", help="gad_pp's tau (default: 1.0)")
    add("--accept-distance", type=int, action="append", help="blockwise's epsilon, for numbers")
    add("--min-block", type=number, action="append", help="blockwise's l (default: 1)")
    add(
        "--path",
        action="append",
        required=True,
        help="the verifier's checkpoint, several with ':' between them; again for another model. "
        "With blockwise a model with heads, or a Transformer and --drafter-path; among several "
        "one without heads has its greedy row alone",
    )
    add("--subset", default="valid", help="of DATA (default: valid)")
    add(
        "--raw",
        type=Path,
        help="its references, plain text, one per line: for BLEU and chrF, or ROUGE of summaries; "
        "images have PSNR against the targets of DATA without it",
    )
    add("--max-len-b", type=number, help="fairseq's, of all rows (default: of texts 200)")
    add("--batch-size", type=number, default=1, help="sentences (default: 1)")
    add("--sentences", type=number, help="so many, evenly from short to long (default: all)")
    add("--dtype", choices=DTYPES, default="fp32", help="(default: fp32)")
    arguments.declare_device(parser)
    add(
        "--smoke",
        action="store_true",
        help=f"a try-out: {SMOKE_SENTENCES} sentences, and of each --decoding the first row",
    )
    out = "the JSON; finished rows are kept beside it, in FILE.partial.jsonl"
    arguments.declare_table(parser, "Acceptance", out)


def run(args: argparse.Namespace) -> int:
    """Measure all settings, and write the table."""
    from ..measure.acceptance import acceptance

    args.decoding = args.decoding or ["gad", "gad_pp"]
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # not without tidying up
    try:
        with arguments.quiet():
            return acceptance(args)
    finally:
        signal.signal(signal.SIGTERM, before)
