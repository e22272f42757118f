"""Compare decoders on one test set: times and quality, or by --preset what is counted.

Every decoder translates the same sentences in the same process, in rounds in which each sentence is
decoded by all decoders one after the other, each time in another order. The timer covers what a
user waits for: batching, encoder, decoder, detokenised text. fairseq's beam 5 and greedy search and
this package's greedy search are always among the decoders; where fairseq is not installed its rows
are not run, and all is compared with our own searches. What was measured is kept beside --out: run
the same command again to go on.

presets:
  times       times and quality of decoders (the default)
  lossless    outputs that differ from fairseq's search, in all settings of each exact decoder;
              with --sweep beam=2,3 n-best lists. It may run beside other work
  acceptance  passes, accepted drafted tokens, blocks and quality, of greedy search and of each
              --decoder in every combination of --sweep, for each --path. There are no times
  quality     BLEU, ROUGE or PSNR of models by fairseq-generate, with the flags after --; OUT.*.txt
              hold the translations
  drafts      passes that earlier translations save as drafts; DATA is a text, a sentence a line,
              and --path a model folder. Times only with --rounds
"""

import argparse
import signal
import sys
from typing import Any

from ...cli import arguments
from ...errors import needs, option_error
from ...extras import is_installed, require
from ..measure.presets import (
    ACCEPTANCE,
    DRAFTS,
    LOSSLESS,
    QUALITY,
    TIMES,
    Comparison,
    given_or_default,
)
from ..settings import declare_fields


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "%(prog)s DATA --path MODEL [--preset NAME] [options] --out FILE [-- FLAGS]"
    parser.epilog = """examples:
  paradec benchmark data-bin/demo.en-de --path data-bin/demo.en-de/model.pt \\
    --decoder 'pgj --block-size 5' --decoder 'wide=hgj --block-size 12' --rounds 3 \\
    --out runs/demo.json
  paradec benchmark data-bin/demo.en-de --preset lossless --path data-bin/demo.en-de/model.pt \\
    --out runs/lossless.json
  paradec benchmark data-bin/multi30k.en-de --preset acceptance --path verifier.pt \\
    --sweep drafter-path=drafter.pt --sweep block-size=5,10 --sweep accept-margin=1,3 \\
    --out runs/acceptance.json
  paradec benchmark data-bin/demo.en-de --preset quality --path data-bin/demo.en-de/model.pt \\
    --subset test --reference data-bin/demo.en-de/raw/demo.de --out runs/quality.json \\
    -- --decoding greedy
  paradec benchmark data-bin/demo-small.en-de/raw/demo.en --preset drafts \\
    --path data-bin/demo-small.en-de --out runs/drafts.json
"""
    parser.set_defaults(plugin=is_installed("fairseq"), flags=[])
    declare_fields(Comparison, parser)


def run(args: argparse.Namespace) -> int:
    """Compare, and write the result or print the table."""
    asked = read(args)
    # So that `finally` runs.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with arguments.quiet():
            return compare(asked)
    finally:
        signal.signal(signal.SIGTERM, before)


def read(args: argparse.Namespace) -> Comparison:
    """Return what is asked for, with the preset's defaults.

    Raises:
        UsageError: an argument is missing, or the preset does not take it.
    """
    from ..measure import specs

    values = given_or_default(args.preset, vars(args))
    for name, flag in (("data", "DATA"), ("path", "--path"), ("out", "--out")):
        if not values[name]:
            raise needs("--preset", args.preset, flag)
    _refuse_several(args.preset, values)
    if args.preset == TIMES and values["out"].suffix != ".json":
        raise option_error("--out", str(values["out"]), "a name that ends in .json")
    if args.preset == QUALITY and not values["subset"]:
        raise needs("--preset", QUALITY, "--subset")
    values["data"] = str(values["data"])
    values["decoder"] = [*map(specs.read, values["decoder"] or ())]
    values["sweep"] = specs.read_sweeps(values["sweep"] or ())
    return Comparison(**values)


def _refuse_several(preset: str, values: dict[str, Any]) -> None:
    """Refuse several models or test sets where one is measured."""
    if len(values["path"]) > 1 and preset not in (ACCEPTANCE, QUALITY):
        raise option_error("--path", " ".join(values["path"]), "one; others in a --decoder")
    subsets, references = values["subset"] or [], values["reference"] or []
    if len(subsets) > 1 and preset not in (LOSSLESS, QUALITY):
        raise option_error("--subset", ",".join(subsets), f"one with --preset {preset}")
    if len(references) > max(1, len(subsets)):
        given = " ".join(map(str, references))
        raise option_error("--reference", given, "one for each subset")


def compare(asked: Comparison) -> int:
    """Do what a preset asks for; return the exit status."""
    from ..data import documents

    if asked.out is not None:
        documents.check_out(asked.out)
    # Some import fairseq, or packages of [lab].
    if asked.preset == TIMES:
        from ..measure import benchmark

        return benchmark.benchmark(asked)
    if asked.preset in (LOSSLESS, ACCEPTANCE):
        from ..measure import counts

        return counts.count(asked)
    if asked.preset == DRAFTS:
        from ..measure import drafts

        return drafts.drafts(asked)
    require(("fairseq",), "fairseq")
    from ..measure import generated

    return generated.score(asked)
