#!/usr/bin/env python3
"""Translate test sets with fairseq-generate and the plugin, and score them.

Translations have BLEU and chrF of cased, detokenised text against the raw reference, as the
sacrebleu command gives them on the hypotheses written beside the result; summaries have ROUGE;
images have PSNR against the targets of DATA. Given again, the command translates only what it
has not: a finished translation is used again if checkpoint, data, flags, plugin and machine are the
same.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

logging.disable(logging.INFO)  # what fairseq says while it is imported
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from fairseq.data import Dictionary, data_utils  # noqa: E402
from tqdm import tqdm  # noqa: E402

from fairseq_paradec import images  # noqa: E402
from fairseq_paradec.analysis.quality import Quality  # noqa: E402
from fairseq_paradec.cli import arguments  # noqa: E402
from fairseq_paradec.errors import UsageError, option_error  # noqa: E402
from fairseq_paradec.measure import documents, loading, machine  # noqa: E402
from fairseq_paradec.measure.text import holds_images, plain_text, quality_of, text_language  # noqa: E402


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
    command += ["--user-dir", str(ROOT / "fairseq_paradec"), "--gen-subset", subset]
    # Not the checkpoint's, as it is elsewhere: fairseq-generate takes its own.
    command += ["--task", loading.IMAGE_TASK] if holds_images(data) else []
    command += flags
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
    language = text_language(data, target_language(data))
    return [plain_text(found[number].split(), language) for number in sorted(found)]


def translated(
    args: argparse.Namespace, path: str, subset: str, beam: int | None, flags: Sequence[str]
) -> list[str]:
    """Return the translations of one setting, those of an earlier run if it made the same.

    They are written beside the result, with a file that says what they were made of.
    """
    name = f"{args.path.index(path)}.{subset}" + ("" if beam is None else f".beam{beam}")
    out, record = (args.out.with_suffix(f".{name}.{end}") for end in ("txt", "made-of.txt"))
    flags = [*beam_flags(beam), *flags]
    files = [*map(Path, path.split(os.pathsep)), *sorted(Path(args.data).glob("dict.*.txt"))]
    files += [*subset_files(args.data, subset), *Path(args.data).glob(images.SIZES)]
    files += sorted((ROOT / "fairseq_paradec").rglob("*.py"))
    here = machine.circumstances("", [])
    made_of = {
        "flags": flags,
        "files": list(map(checksum, files)),
        "machine": [here["machine"], here["versions"]],
    }
    if out.is_file() and record.is_file():
        if record.read_text() == json.dumps(made_of | {"translations": checksum(out)}):
            tqdm.write(f"evaluate: translated before: {out}", file=sys.stderr)
            return out.read_bytes().decode().split("\n")[:-1]
    texts = translate(args.data, path, subset, flags)
    write(out, "".join(f"{text}\n" for text in texts))
    write(record, json.dumps(made_of | {"translations": checksum(out)}))
    return texts


def target_language(data: str) -> str:
    """Return the name that a data folder has for its targets."""
    return str(data_utils.infer_language_pair(data)[1])


def image_references(data: str, subset: str) -> list[str]:
    """Return a subset's target images, the intensities of each as text."""
    pair = data_utils.infer_language_pair(data)
    words = Dictionary.load(str(Path(data) / f"dict.{pair[1]}.txt"))
    targets = data_utils.load_indexed_dataset(f"{data}/{subset}.{'-'.join(pair)}.{pair[1]}", words)
    return [plain_text(words.string(tokens).split(), None) for tokens in targets]


def checksum(path: Path) -> str:
    """Return a file's SHA-256."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def subset_files(data: str, subset: str) -> list[Path]:
    """Return the binarised files of a subset.

    Raises:
        UsageError: there are none.
    """
    names = {path.name.split(".")[0] for path in Path(data).glob("*.*-*.*.idx")}
    if subset not in names:
        held = " ".join(sorted(names)) or "none"
        raise option_error("--subset", subset, f"one that DATA ({data}) holds: {held}")
    return sorted(Path(data).glob(f"{subset}.*-*.*"))


def evaluate(args: argparse.Namespace, flags: Sequence[str], argv: Sequence[str]) -> int:
    """Translate, score and write; return the exit status.

    Args:
        args: the command's own arguments.
        flags: those of fairseq-generate.
        argv: all of them, for the record.
    """
    for path in args.path:
        loading.check_inputs(args.data, path)
    for subset in args.subset:
        subset_files(args.data, subset)
    tests = read_tests(args)
    language = target_language(args.data)
    if args.out.is_dir():
        raise option_error("--out", str(args.out), "a file, not a folder")
    try:
        args.out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        allowed = f"a file in a folder that can be made ({error.strerror})"
        raise option_error("--out", str(args.out), allowed) from error
    settings = list(itertools.product(tests, args.beam, args.path))
    if args.smoke:
        settings = settings[:1]
    rows: list[dict[str, Any]] = []
    first: dict[tuple[str, int | None], list[str]] = {}
    quality: Quality | None = None
    for subset, beam, path in tqdm(settings, desc="evaluate", unit="run"):
        texts = translated(args, path, subset, beam, flags)
        if len(texts) != len(tests[subset]):
            raise UsageError(
                f"fairseq-generate gave {len(texts)} outputs for {subset} of {args.data}, and "
                f"there are {len(tests[subset])} references; allowed: a --raw of as many lines as "
                "the subset has, and no flags after -- that choose among its sentences"
            )
        quality = quality_of(args.data, language, tests[subset])
        row = {"model": path, "subset": subset, "beam": "-" if beam is None else beam}
        row |= {"sentences": len(texts)}
        row |= {metric: round(score, 2) for metric, score in quality.scores(texts).items()}
        # Against the first model, in the same setting.
        baseline = first.setdefault((subset, beam), texts)
        for metric, (mean, low, high) in quality.differences(texts, baseline).items():
            if len(args.path) > 1:
                text = f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]"
                row[f"{metric} - first"] = "-" if texts is baseline else text
        rows.append(row)
    signatures = quality.signatures() if quality else {}
    notes = [f"{quality.compared}."] if quality else []
    notes += [f"{name}: {signature}" for name, signature in signatures.items()]
    if len(args.path) > 1:
        notes.append("Differences from the first model with 95% paired-bootstrap intervals.")
    command = f"python scripts/evaluate.py {shlex.join(argv)}"
    made_by = machine.circumstances("", argv) | {"command": command}
    documents.save(args.out, args.title, notes, rows, made_by)
    for row in rows:
        print(", ".join(f"{name} {value}" for name, value in row.items()))
    return 0


def read_tests(args: argparse.Namespace) -> dict[str, list[str]]:
    """Return the references of each test set: of images the targets of DATA, of texts ``--raw``.

    Raises:
        UsageError: ``--raw`` does not fit.
    """
    raw = args.raw or []
    if holds_images(args.data):
        if raw:
            raise option_error("--raw", str(raw[0]), "none: images are scored against DATA's own")
        return {subset: image_references(args.data, subset) for subset in args.subset}
    tests = dict(zip(args.subset, map(read_references, raw)))
    if len(args.subset) != len(raw) or len(tests) != len(raw):
        raise option_error("--raw", " ".join(map(str, raw)), "one for each --subset")
    return tests


def read_references(path: Path) -> list[str]:
    """Return the lines of ``--raw``.

    Raises:
        UsageError: there is no such file.
    """
    if not path.is_file():
        raise option_error("--raw", str(path), "a file with one reference per line")
    lines = path.read_text(encoding="utf-8").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def beam_flags(beam: int | None) -> list[str]:
    """Return fairseq-generate's flags for the checkpoint's own beam search; none without."""
    return [] if beam is None else ["--decoding", "auto", "--beam", str(beam)]


def write(path: Path, text: str) -> None:
    """Write a file, which appears when it is whole."""
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(text.encode())
    partial.replace(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate models on test sets; return the exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="Flags after -- go to fairseq-generate: -- --decoding greedy, or -- --lenpen 0.6",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s DATA --path FILES --subset NAME [--raw FILE] --out FILE [-- FLAGS]",
    )
    add = parser.add_argument
    add("data", metavar="DATA", help="a folder that fairseq-preprocess made")
    add(
        "--path",
        action="append",
        required=True,
        help="the checkpoint, several with ':' between them; again for another model",
    )
    add("--subset", action="append", required=True, help="of DATA, for example test; again ...")
    add(
        "--raw",
        type=Path,
        action="append",
        help="its references, plain text, one per line; once for each --subset. Images need none",
    )
    add(
        "--beam",
        type=arguments.whole_number,
        action="append",
        help="beam search with this beam: fairseq's, or a reordered decoder's own; again for "
        "another (default: as -- FLAGS say)",
    )
    add("--smoke", action="store_true", help="a try-out: only the first test set, beam and model")
    add("--title", default="Quality", help="of the section in RESULTS.md")
    add(
        "--out",
        type=Path,
        required=True,
        help="the JSON; OUT.*.txt are the translations, OUT.*.made-of.txt checksums of their input",
    )
    at = argv.index("--") if "--" in argv else len(argv)
    args = parser.parse_args(argv[:at])
    args.beam = args.beam or [None]
    return arguments.run("evaluate", lambda: evaluate(args, argv[at + 1 :], argv))


if __name__ == "__main__":
    sys.exit(main())
