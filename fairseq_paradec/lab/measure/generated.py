"""The preset ``quality``: test sets, translated by fairseq-generate, and scored.

That command runs all of fairseq's tasks and flags.
"""

import itertools
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ...config import flag
from ...errors import UsageError
from ...images import TASK, holds_images
from ..data import documents
from ..data.journal import Journal
from ..data.table import Cells, Table
from .inputs import check_all, origin
from .judge import references, score_columns
from .kept import key, open_journal, save
from .presets import Comparison
from .text import plain_text, quality_of, target_language, text_language


def score(asked: Comparison) -> int:
    """Translate test sets with fairseq-generate, score and write; return the exit status."""
    check_all(asked.data, asked.path, asked.subset)
    tests, sources = {}, {}
    for subset, given in itertools.zip_longest(asked.subset, asked.reference):
        tests[subset], sources[subset] = references(asked.data, subset, None, given)
    language = target_language(asked.data)
    sweeps = [[(name, value) for value in values] for name, values in asked.sweep.items()]
    settings = [*itertools.product(tests, itertools.product(*sweeps), asked.path)]
    journal, rows = open_journal(asked), []
    first: dict[Any, list[str]] = {}
    for subset, options, path in tqdm(settings[: 1 if asked.smoke else None], disable=None):
        texts = translated(asked, journal, subset, dict(options), path)
        if len(texts) != len(tests[subset]):
            raise UsageError(
                f"fairseq-generate gave {len(texts)} outputs for {subset} of {asked.data}, and "
                f"there are {len(tests[subset])} references; allowed: a --reference of as many "
                "lines as the subset has, and no flags after -- that choose among its sentences"
            )
        quality = quality_of(asked.data, language, tests[subset])
        row: Cells = {"model": path, "subset": subset, "beam": None, **dict(options)}
        row["sentences"] = len(texts)
        # Against the first model, in the same setting.
        baseline = first.setdefault((subset, options), texts)
        row |= score_columns(quality, texts, {"first": baseline} if len(asked.path) > 1 else {})
        rows.append(row)
    journal.close()
    notes = [f"{quality.compared}."]
    notes += [f"References of {subset}: {source}." for subset, source in sources.items()]
    notes += [f"{name}: {signature}" for name, signature in quality.signatures().items()]
    if len(asked.path) > 1:
        notes.append("Differences from the first model with 95% paired-bootstrap intervals.")
    save(asked, Table.of(rows, notes=notes))
    return 0


def translated(
    asked: Comparison, journal: Journal, subset: str, options: Mapping[str, Any], path: str
) -> list[str]:
    """Return the translations of one setting, which are written beside the result, too."""
    flags = [word for name, value in options.items() for word in (flag(name), str(value))]
    # The checkpoint's own beam search, unless FLAGS say another.
    flags = [*(["--decoding", "auto"] if "beam" in options else []), *flags, *asked.flags]
    files = path.split(os.pathsep)
    name = key(flags, path, origin(asked.data, subset, files))
    ends = "".join(f".{option}{value}" for option, value in options.items())
    assert asked.out is not None
    out = asked.out.with_suffix(f".{asked.path.index(path)}.{subset}{ends}.txt")
    if name in journal.entries:
        tqdm.write(f"paradec benchmark: translated before: {out}", file=sys.stderr)
    else:
        journal.put(name, translate(asked.data, path, subset, flags))
    texts: list[str] = journal.entries[name]
    documents.write(out, "".join(f"{text}\n" for text in texts))
    return texts


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
    by_number: dict[int, str] = {}
    # Not splitlines(): a translation may hold other characters that end a line.
    for line in result.stdout.split("\n"):
        if line.startswith("H-"):
            number, _, text = line[2:].split("\t", 2)
            by_number.setdefault(int(number), text)  # of several (--nbest) the first is the best
    language = text_language(data, target_language(data))
    return [plain_text(by_number[number].split(), language) for number in sorted(by_number)]
