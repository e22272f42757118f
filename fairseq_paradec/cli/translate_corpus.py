"""paradec translate --out: corpora in parts, on one machine or a cluster."""

import argparse
import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ..config import OPTIONS, REPORT_FLAGS, flag
from ..errors import excludes, needs, option_error
from ..files import checksum
from ..translator import model_folder
from ..translator.corpus import parts
from ..translator.corpus.crews import Work
from ..translator.corpus.lines import COLUMN, Corpus
from ..translator.hub import folder_of
from . import machines

#: Lines of a part, which are sorted by length together.
PART = 4096

#: Written last: how many lines, and why which of them have no translation.
REPORT = "report.json"

_FILES = {"input": "INPUT", "model": "--model", "drafter-path": "--drafter-path"}


def translate_parts(args: argparse.Namespace, options: dict[str, Any]) -> int:
    """Translate files to ``args.out/parts``.

    Raises:
        UsageError: an option is wrong, or the work cannot be done.
    """
    _check(args, options)
    machines.check_device(args)
    if "drafter_path" in options:  # workers may be in another folder
        options["drafter_path"] = os.path.abspath(options["drafter_path"])
    corpus = Corpus(args.files, args.column or COLUMN)
    args.model = folder_of(args.model, args.source_language, args.target_language)
    model_folder.read(args.model)
    made = options | {
        "model": checksum(args.model / model_folder.NAME),
        "buffer_size": args.buffer_size or PART,
        "threads": args.threads or 1,
        "device": args.device,
    }
    if os.path.isfile(drafter := options.get("drafter_path", "")):
        made["drafter_path"] = checksum(Path(drafter))
    settings = {name.replace("_", "-"): value for name, value in made.items()}
    options["buffer_size"] = made["buffer_size"]
    marks = {"model": made["model"][:12], "settings": _short(settings)}
    load = partial(worker, args.model.absolute(), args.device, made["model"], options, marks)
    with parts.locked(args.out, "--out"), machines.stopped_softly("paradec translate"):
        given = settings | {"input": [list(file) for file in corpus.files], "column": corpus.column}
        parts.begin(args.out, given, "--out", _FILES)
        if not (args.out / REPORT).is_file():
            crew = machines.crew(args, load)
            todo = _unchanged(corpus.parts(made["buffer_size"]), args.out)
            parts.make(args.out, todo, crew, corpus.estimate)
            counts = count(args.out / "parts")
            parts.write(args.out / REPORT, json.dumps(counts, indent=1).encode() + b"\n")
        print(f"{args.out}: {(args.out / REPORT).read_text('utf-8')}", end="", file=sys.stderr)
    return 0


def _check(args: argparse.Namespace, options: Mapping[str, Any]) -> None:
    """Refuse what a corpus does not have."""
    if not args.files:
        raise needs("--out", str(args.out), "FILE: files, patterns or folders")
    for given in map(Path, args.files):
        if given.is_dir() and args.out.resolve().is_relative_to(given.resolve()):
            raise option_error("--out", str(args.out), f"a folder that is not in INPUT ({given})")
    if options.get("decoding") == "auto_fast":
        others = "--out: what is fastest differs between machines and runs"
        raise excludes("--decoding", "auto_fast", others)
    for name in REPORT_FLAGS:
        if name in options and options[name] != OPTIONS[name].default:
            raise excludes(flag(name), options[name], "--out")


def worker(
    model: Path, device: str, wanted: str, options: Mapping[str, Any], marks: Mapping[str, str]
) -> Work:
    """Load a model; return a function from the first line's number and lines to rows of JSON.

    Args:
        model: the folder.
        device: ``cpu`` or ``cuda``.
        wanted: the checksum of the folder's description.
        options: of ``Translator.results``.
        marks: more of each row.

    Raises:
        UsageError: the folder cannot be read, or is another.
    """
    from ..translator.translator import Translator

    translator = Translator(model, device=device)
    if checksum(model / model_folder.NAME) != wanted:
        raise option_error("--model", str(model), "the same model on all machines")
    options = {"decoding": translator.usual("greedy"), **options}
    return lambda work: b"".join(_rows(translator, work, options, marks))


def _rows(translator: Any, work: tuple[int, list[bytes]], options: Any, marks: Any) -> list[bytes]:
    """Translate lines; return a row of JSON for each."""
    first, lines = work
    texts = _texts(lines)
    right = [text.encode() == line for text, line in zip(texts, lines)]
    sources = [text if is_text else "" for text, is_text in zip(texts, right)]
    rows = []
    for number, result in enumerate(translator.results(sources, first=first, **options)):
        row = {
            "line": first + number,
            "source": texts[number],
            "translation": result.text,
            "score": None if result.score is None else round(result.score, 4),
            "problem": result.problem if right[number] else "is not UTF-8",
        }
        rows.append(json.dumps(row | dict(marks), ensure_ascii=False).encode() + b"\n")
    return rows


def _texts(lines: Iterable[bytes]) -> list[str]:
    """Return lines as text, with what is not UTF-8 in hexadecimal digits."""
    return [line.decode("utf-8", "backslashreplace") for line in lines]


def _unchanged(todo: Iterable[parts.Part], out: Path) -> Iterator[parts.Part]:
    """Yield parts; raise UsageError at one that is finished, with other lines."""
    for part in todo:
        path = out / "parts" / part.name
        if path.is_file():
            before = [json.loads(row)["source"] for row in path.read_bytes().splitlines()]
            if before != _texts(part.work[1]):
                given = f"other lines than those that are finished in {path}"
                raise option_error("INPUT", given, "the same, or another --out")
        yield part


def count(folder: Path) -> dict[str, Any]:
    """Count lines, and those without translation by the reason."""
    lines, problems = 0, Counter[str]()
    for path in sorted(folder.glob("*.jsonl")):
        with path.open("rb") as rows:
            for row in rows:
                lines += 1
                if (reason := json.loads(row)["problem"]) is not None:
                    problems["is too long" if " tokens, and " in reason else reason] += 1
    return {"lines": lines, "without translation": problems.total(), "why": dict(problems)}


def _short(settings: Mapping[str, Any]) -> str:
    """Return a short name of settings."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
