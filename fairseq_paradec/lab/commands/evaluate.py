"""Translate test sets with fairseq-generate and the plugin, and score them.

Translations have BLEU and chrF of cased, detokenised text against the raw reference, as the
sacrebleu command gives them on the hypotheses written beside the result; summaries have ROUGE;
images have PSNR against the targets of DATA. A repeated command reuses a finished translation if
checkpoint, data, flags, plugin and machine are the same.
"""

import argparse
from pathlib import Path

from ...cli import arguments
from ..settings import settings


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.usage = "%(prog)s DATA --path FILES --subset NAME [--raw FILE] --out FILE [-- FLAGS]"
    parser.epilog = (
        "Flags after -- go to fairseq-generate. example: paradec evaluate data-bin/demo.en-de "
        "--path data-bin/demo.en-de/model.pt --subset test --raw data-bin/demo.en-de/raw/demo.de "
        "--out runs/quality.json -- --decoding greedy"
    )
    parser.set_defaults(flags=[])
    add = parser.add_argument
    add("data", metavar="DATA", help="a folder that fairseq-preprocess made")
    add(
        "--path",
        action="append",
        required=True,
        help="the checkpoint, or an ensemble's, with ':' between them; repeat it for more models",
    )
    add("--subset", action="append", required=True, help="of DATA, such as test; may be repeated")
    add(
        "--raw",
        type=Path,
        action="append",
        help="plain references, one per line; once for each --subset. Images need none",
    )
    add(
        "--beam",
        type=arguments.whole_number,
        action="append",
        help="beam of fairseq's search, or of a reordered decoder; may be repeated (default: that "
        "of -- FLAGS)",
    )
    add("--smoke", action="store_true", help="a try-out: only the first test set, beam and model")
    out = "the JSON; OUT.*.txt hold translations, OUT.*.made-of.txt checksums of their input"
    arguments.declare_table(parser, "Quality", out)


def run(args: argparse.Namespace) -> int:
    """Translate, score and write."""
    from ..measure.evaluate import Settings, evaluate

    raw, beam = args.raw or [], args.beam or [None]
    return evaluate(settings(Settings, args, raw=raw, beam=beam))
