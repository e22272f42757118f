"""Analyse translations, scores, benchmarks and traces of decoders.

Texts and scores: the analyses of zhang2020 (IBDecoder), imamura2020 (double-token decoding) and
xia2022 (repetition), and ROUGE of summaries. Benchmarks: speed-ups by batch, beam, length and
threads, by sentence, and by stern2018's mean accepted block. Traces: acceptance by position, and
FLOPs as in santilli2023. Logs of trainings: their losses.

Texts have one sentence per line, or are outputs of fairseq-generate: lines D- (or H-) for
translations, T- for references, S- for sources. Spaces separate tokens, so analyses that count
words need tokenised texts.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...output import printable
from ..data import documents
from ..settings import Made
from ..show.table import terminal_table
from . import analyse_flops, analyse_speed, analyse_texts, analyse_training
from .pages import check_picture


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    parser.epilog = "example: paradec analyse acceptance trace.jsonl --plot acceptance.png"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(metavar="ANALYSIS", required=True)

    def command(
        name: str, run: Callable[..., Any], text: str, out: bool = True, plugin: bool = False
    ) -> Any:
        """Declare one; ``run`` returns a table."""
        title = text[0].upper() + text[1:]
        parser = commands.add_parser(name, help=text, description=f"{title}.")
        parser.set_defaults(analysis=run, title=title, plugin=plugin)
        if out:
            parser.add_argument(
                "--out",
                type=Path,
                metavar="FILE.json",
                help="also write the table, for paradec report",
            )
        return parser.add_argument

    for module in (analyse_texts, analyse_speed, analyse_flops, analyse_training):
        module.declare(command)


def run(args: argparse.Namespace) -> int:
    """Print a table and its notes; also write it to ``--out``, and the picture to ``--plot``."""
    if getattr(args, "plot", None) is not None:
        Path(args.plot).parent.mkdir(parents=True, exist_ok=True)
        args.plot = check_picture("--plot", args.plot)
    table = args.analysis(args)
    lines = [*terminal_table(table).split("\n"), "", *table.notes]
    print("\n".join(map(printable, lines)))  # files may hold anything
    if getattr(args, "out", None) is not None:
        documents.save_made(Made(args.argv, args.out, args.title), table)
    return 0
