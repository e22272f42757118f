"""Make a data folder whose targets are a teacher's translations: sequence-level distillation.

The command translates the training sources with beam search. Outputs are fairseq's, and passes are
faster where there is one plain Transformer. Results do not depend on the number of workers, nor on
interruptions: the same command goes on where it was stopped or killed.
"""

import argparse
import dataclasses
import os
import sys
from functools import partial
from pathlib import Path

from ...cli import arguments, machines
from ...errors import option_error
from ...translator.corpus import parts
from ..distill import merge, plan

EPILOG = """
DEST: dictionaries, the distilled subset, and DATA's other subsets unchanged. raw/: their text, if
DATA/raw has it. text/: the pairs as text (BPE tokens), a line for each sentence, in order; one
without translation (empty, or too long for the teacher) has an empty line. Such ones, and those
that --no-loops leaves out, are in left-out.txt (number from 0, tokens, source), and not in the
binarised subset. parts/: finished batches.
distilled.json: settings and counts, written last. example: paradec distill
data-bin/multi30k.en-de --path teacher.pt data-bin/multi30k-distilled.en-de
"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.usage = "%(prog)s DATA --path TEACHER.pt[:TEACHER2.pt...] [options] DEST"
    parser.epilog = EPILOG
    add, number = parser.add_argument, arguments.whole_number
    add("data", metavar="DATA", type=Path, help="a folder that fairseq-preprocess made")
    add("dest", metavar="DEST", type=Path, help="the folder to make")
    add(
        "--path",
        required=True,
        help="the teacher's checkpoint; several with ':' between them are an ensemble",
    )
    add("--subset", default="train", help="whose targets are replaced (default: train)")
    add("--beam", type=number, default=5, help="(default: 5)")
    add("--lenpen", type=float, default=1.0, help="(default: 1)")
    add(
        "--max-tokens",
        type=number,
        help="source tokens in a batch, padding included (default: 2000; GPUs are faster with "
        "more)",
    )
    add("--batch-size", type=number, help="sentences in a batch")
    arguments.declare_device(parser)
    add("--threads", type=number, help="of each worker (default: 1)")
    add("--fp16", action="store_true", help="translate in half precision")
    add(
        "--engine-dtype",
        choices=("fp32", "bf16", "int8"),
        default="fp32",
        help="of the passes on a CPU: int8 is fastest, and some translations differ (default: "
        "fp32; distilled.json says it)",
    )
    add(
        "--no-loops",
        action="store_true",
        help="leave out translations that repeat up to four tokens three times in a row: a model "
        "that is fine-tuned on its own loops runs on",
    )
    add("--smoke", action="store_true", help="only the first 64 sentences")
    machines.declare(parser)


def run(args: argparse.Namespace) -> int:
    """Translate and merge.

    Raises:
        UsageError: an argument is wrong, or DEST was begun otherwise.
    """
    for name, path in (("DATA", args.data), ("DEST", args.dest)):
        if ":" in str(path):
            raise option_error(name, str(path), "a path without ':' (fairseq splits it there)")
    if not args.data.is_dir():
        raise option_error("DATA", str(args.data), "a folder made by fairseq-preprocess")
    for path in args.path.split(os.pathsep):
        if not Path(path).is_file():
            raise option_error("--path", path, "a teacher's checkpoint")
    machines.check_device(args)
    if args.max_tokens is None and args.batch_size is None:
        args.max_tokens = 2000
    names = [field.name for field in dataclasses.fields(plan.Request)]
    settings = plan.settings_of(plan.Request(**{name: getattr(args, name) for name in names}))
    with parts.locked(args.dest, "DEST"), machines.stopped_softly("paradec distill"):
        parts.begin(args.dest, settings, "DEST", plan.FILES)
        if (args.dest / merge.REPORT).is_file():
            print(f"distill: already made: {args.dest}", file=sys.stderr)
            return 0
        sources = plan.load_sources(args.data, settings)
        todo = list(plan.parts_of(sources, settings))
        path = os.pathsep.join(os.path.abspath(teacher) for teacher in args.path.split(os.pathsep))
        load = partial(plan.teacher, args.data.absolute(), path, settings, args.device)
        crew = machines.crew(args, load)
        parts.make(args.dest, todo, crew, lambda: sum(part.lines for part in todo))
        counts = merge.merge(args.data, args.dest, settings, sources, todo)
    print(
        f"distill: {counts['sentences']} sentences, {counts['left out']} of them left out",
        file=sys.stderr,
    )
    return 0
