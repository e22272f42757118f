"""``paradec evaluate``: scores of test sets, decoded by fairseq-generate with the plugin.

Only this command decodes by fairseq's own command, so that it supports all of its tasks and flags.
"""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from ...errors import UsageError, option_error
from ...files import checksum
from ...images import TASK, holds_images
from ...plugin.tasks.loading import check_inputs
from ..analysis.quality import Quality
from ..data import documents
from ..data.table import Cells, Table
from ..settings import Made
from .inputs import origin, subset_files
from .judge import read_references, score_columns, target_language, targets
from .text import plain_text, quality_of, text_language


@dataclass(frozen=True)
class Settings(Made):
    """Of ``paradec evaluate``."""

    data: str  # fairseq's data folder
    path: Sequence[str]  # checkpoints, each perhaps an ensemble's with ``:`` between them
    subset: Sequence[str]  # of the data
    raw: Sequence[Path]  # plain references, one file for each subset; none for images
    beam: Sequence[int | None]  # sizes of the beam; None: as ``flags`` say
    smoke: bool  # whether only the first test set, beam and model are scored
    flags: Sequence[str]  # of fairseq-generate


def translate(data: str, path: str, subset: str, flags: Sequence[str]) -> list[str]:
    """Return fairseq-generate's best hypotheses as plain text, in the order of the data.

    Raises:
        UsageError: fairseq-generate fails.
    """
    command = [sys.executable, "-P", "-m", "fairseq_cli.generate", data, "--path", path]
    command += ["--user-dir", str(Path(__file__).resolve().parents[2]), "--gen-subset", subset]
    # fairseq-generate uses its own settings, not the checkpoint's.
    command += ["--task", TASK] if holds_images(data) else []
    command += flags
    result = subprocess.run(command, capture_output=True, encoding="utf-8")
    if result.returncode != 0:
        said = result.stderr.strip().split("\n")[-1]
        if said.startswith("error: "):
            raise UsageError(f"fairseq-generate: {said[7:]}")
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


def translated(args: Settings, path: str, subset: str, beam: int | None) -> list[str]:
    """Return the translations of one setting, from an earlier run with the same inputs if any.

    They are written to the result's folder, with a file that lists their inputs.
    """
    name = f"{args.path.index(path)}.{subset}" + ("" if beam is None else f".beam{beam}")
    out, record = (args.out.with_suffix(f".{name}.{end}") for end in ("txt", "made-of.txt"))
    flags = [*beam_flags(beam), *args.flags]
    made_of = {"flags": flags, **origin(args.data, subset, path.split(os.pathsep))}
    if out.is_file() and record.is_file():
        if record.read_text("utf-8") == json.dumps(made_of | {"translations": checksum(out)}):
            tqdm.write(f"paradec evaluate: translated before: {out}", file=sys.stderr)
            return out.read_bytes().decode().split("\n")[:-1]
    texts = translate(args.data, path, subset, flags)
    documents.write(out, "".join(f"{text}\n" for text in texts))
    documents.write(record, json.dumps(made_of | {"translations": checksum(out)}))
    return texts


def evaluate(args: Settings) -> int:
    """Translate, score and write; return the exit status."""
    for path in args.path:
        check_inputs(args.data, path)
    for subset in args.subset:
        subset_files(args.data, subset)
    tests = read_tests(args)
    language = target_language(args.data)
    documents.check_out(args.out)
    settings = list(itertools.product(tests, args.beam, args.path))
    if args.smoke:
        settings = settings[:1]
    rows: list[Cells] = []
    first: dict[tuple[str, int | None], list[str]] = {}
    quality: Quality | None = None
    for subset, beam, path in tqdm(settings, desc="evaluate", unit="run", disable=None):
        texts = translated(args, path, subset, beam)
        if len(texts) != len(tests[subset]):
            raise UsageError(
                f"fairseq-generate gave {len(texts)} outputs for {subset} of {args.data}, and "
                f"there are {len(tests[subset])} references; allowed: a --raw of as many lines as "
                "the subset has, and no flags after -- that choose among its sentences"
            )
        quality = quality_of(args.data, language, tests[subset])
        row: Cells = {"model": path, "subset": subset, "beam": beam}
        row |= {"sentences": len(texts)}
        # Against the first model, in the same setting.
        baseline = first.setdefault((subset, beam), texts)
        row |= score_columns(quality, texts, {"first": baseline} if len(args.path) > 1 else {})
        rows.append(row)
    signatures = quality.signatures() if quality else {}
    notes = [f"{quality.compared}."] if quality else []
    notes += [f"{name}: {signature}" for name, signature in signatures.items()]
    if len(args.path) > 1:
        notes.append("Differences from the first model with 95% paired-bootstrap intervals.")
    table = Table.of(rows, notes=notes)
    documents.save_made(args, table)
    for texts in table.text():
        print(", ".join(f"{c.name} {text}" for c, text in zip(table.shown, texts, strict=True)))
    return 0


def read_tests(args: Settings) -> dict[str, list[str]]:
    """Return the references of each test set: for images the targets of DATA, else ``--raw``."""
    raw = args.raw
    if holds_images(args.data):
        if raw:
            raise option_error("--raw", str(raw[0]), "none: images are scored against DATA's own")
        return {subset: targets(args.data, subset) for subset in args.subset}
    tests = dict(zip(args.subset, (read_references(file, "--raw") for file in raw)))
    if len(args.subset) != len(raw) or len(tests) != len(raw):
        raise option_error("--raw", " ".join(map(str, raw)), "one for each --subset")
    return tests


def beam_flags(beam: int | None) -> list[str]:
    """Return fairseq-generate's flags for the checkpoint's own beam search; [] without a beam."""
    return [] if beam is None else ["--decoding", "auto", "--beam", str(beam)]
