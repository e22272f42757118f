#!/usr/bin/env python3
"""Translate a test set with fairseq-generate and the plugin, and score it by sacreBLEU.

The scores are of cased, detokenised text against the raw reference, as the sacrebleu command gives
them on the hypotheses written beside the result.
"""

from __future__ import annotations

import argparse
import logging
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

logging.disable(logging.INFO)  # what fairseq says while it is imported
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from fairseq.data import data_utils  # noqa: E402

from fairseq_paradec.analysis.quality import Quality  # noqa: E402
from fairseq_paradec.cli import measure  # noqa: E402
from fairseq_paradec.errors import UsageError, option_error  # noqa: E402


def translate(data: str, path: str, subset: str, flags: Sequence[str]) -> list[str]:
    """Return fairseq-generate's best hypotheses as plain text, in the order of the data.

    Args:
        data: fairseq's data folder.
        path: the checkpoint, or several with ``:`` between them.
        subset: its name, for example ``test``.
        flags: more flags of fairseq-generate.

    Raises:
        UsageError: fairseq-generate fails.
    """
    command = [sys.executable, "-P", "-m", "fairseq_cli.generate", data, "--path", path]
    command += ["--user-dir", str(ROOT / "fairseq_paradec"), "--gen-subset", subset, *flags]
    result = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    if result.returncode != 0:
        print(result.stderr[-4000:], file=sys.stderr)
        raise UsageError(f"fairseq-generate failed with status {result.returncode}")
    found: dict[int, str] = {}
    # Not splitlines(): a translation may hold other characters that end a line.
    for line in result.stdout.split("\n"):
        if line.startswith("H-"):
            number, _, text = line[2:].split("\t", 2)
            found.setdefault(int(number), text)  # of several (--nbest) the first is the best
    language = data_utils.infer_language_pair(data)[1]
    return [measure.plain_text(found[number].split(), language) for number in sorted(found)]


def evaluate(args: argparse.Namespace, flags: Sequence[str], argv: Sequence[str]) -> int:
    """Translate, score and write; return the exit status.

    Args:
        args: the command's own arguments.
        flags: those of fairseq-generate.
        argv: all of them, for the record.
    """
    measure.check_inputs(args.data, args.path)
    if not args.raw.is_file():
        raise option_error("--raw", str(args.raw), "a file with one reference per line")
    references = args.raw.read_text(encoding="utf-8").rstrip("\n").split("\n")
    print(f"evaluate: [1/2] translating {args.subset} of {args.data}", file=sys.stderr)
    hypotheses = translate(args.data, args.path, args.subset, flags)
    if len(hypotheses) != len(references):
        raise option_error(
            "--raw", str(args.raw), f"{len(hypotheses)} lines, as {args.subset} of {args.data} has"
        )
    print("evaluate: [2/2] scoring", file=sys.stderr)
    texts = args.out.with_suffix(".txt")
    texts.parent.mkdir(parents=True, exist_ok=True)
    texts.write_text("".join(f"{text}\n" for text in hypotheses), encoding="utf-8")
    command = f"python scripts/evaluate.py {shlex.join(argv)}"
    quality = Quality(references, resamples=1)
    scores = {name: round(score, 2) for name, score in quality.scores(hypotheses).items()}
    measure.save(
        args.out,
        "Translation quality",
        [f"{name}: {signature}" for name, signature in quality.signatures().items()],
        [{"model": args.path, "subset": args.subset, "sentences": len(references), **scores}],
        measure.circumstances("", argv) | {"command": command},
    )
    print(f"{args.out}: " + ", ".join(f"{name} {score}" for name, score in scores.items()))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate one model on one test set; return the exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="Flags after -- go to fairseq-generate: -- --decoding greedy, or -- --beam 5",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s DATA --path FILES --raw FILE --out FILE [--subset NAME] [-- FLAGS]",
    )
    add = parser.add_argument
    add("data", metavar="DATA", help="a folder that fairseq-preprocess made")
    add("--path", required=True, help="the checkpoint; several with ':' between them")
    add("--subset", default="test", help="of DATA (default: test)")
    add("--raw", type=Path, required=True, help="its references: plain text, one per line")
    add("--out", type=Path, required=True, help="the JSON; OUT with .txt has the hypotheses")
    at = argv.index("--") if "--" in argv else len(argv)
    args = parser.parse_args(argv[:at])
    return measure.run("evaluate", lambda: evaluate(args, argv[at + 1 :], argv))


if __name__ == "__main__":
    sys.exit(main())
