"""Common parts of the steps of distill.sh: settings, batches, and files of translations.

Batches are made once from the whole subset and distributed to the shards. So a sentence has the
same batch, and the same translation to the last bit, for any number of shards and interruptions. A
part file holds one JSON line per finished batch; a cut line is an unfinished batch.

The command starts a folder of parts, or checks the settings of an existing one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import UsageError

#: Sentences that --smoke translates.
SMOKE_SENTENCES = 64

#: Settings that are checksums of files, and the flags of these files.
_FILES = {"data": "DATA", "languages": "DATA", "teachers": "--path"}

#: Prefix of a folder of parts before it is renamed.
NEW = ".new-"


class Batch(NamedTuple):
    """A finished batch: the sentences' numbers, and their translations without ``</s>``."""

    ids: list[int]
    targets: list[list[int]]


# ---- settings -----------------------------------------------------------------------------------


def languages(data: Path, subset: str) -> tuple[str, str]:
    """Return source and target language from the names of the subset's files.

    Raises:
        UsageError: there are no such files.
    """
    for path in sorted(data.glob("*.idx")):
        match = re.fullmatch(r"(.+)\.([^.]+)-([^.]+)\.([^.]+)\.idx", path.name)
        if match and match[1] == subset and match[4] == match[2]:
            return match[2], match[3]
    found = {path.name.split(".")[0] for path in data.glob("*.*-*.*.idx")}
    raise UsageError(
        f"--subset: got '{subset}'; DATA ({data}) holds: {' '.join(sorted(found)) or 'none'}"
    )


def fingerprint(path: Path) -> str:
    """Return a file's SHA-256."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def pieces(data: Path, subset: str, pair: Sequence[str]) -> list[str]:
    """Name the pieces of a subset: fairseq trains on train, train1, train2, ... as one."""
    names = [subset]
    while subset == "train" and (data / f"{_stem(f'train{len(names)}', pair)}.idx").is_file():
        names.append(f"train{len(names)}")
    return names


def source_paths(data: Path, subset: str, pair: Sequence[str]) -> list[Path]:
    """Return the paths of the subset's sources, piece by piece, without .bin and .idx."""
    return [data / _stem(piece, pair) for piece in pieces(data, subset, pair)]


def _stem(piece: str, pair: Sequence[str]) -> str:
    """Return the name of a piece's source files without .bin and .idx."""
    return f"{piece}.{pair[0]}-{pair[1]}.{pair[0]}"


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return all settings of the translations, with checksums of files."""
    pair = languages(args.data, args.subset)
    files = [args.data / f"dict.{language}.txt" for language in pair]
    for path in source_paths(args.data, args.subset, pair):
        files += [path.with_name(path.name + end) for end in (".bin", ".idx")]
    for path in files:
        if not path.is_file():
            raise UsageError(f"DATA: got '{args.data}', in which {path.name} is missing")
    settings = {
        "subset": args.subset,
        "languages": list(pair),
        "data": {path.name: fingerprint(path) for path in files},
        "teachers": [fingerprint(Path(path)) for path in args.path.split(os.pathsep)],
        "beam": args.beam,
        "lenpen": args.lenpen,
        "batch-size": args.batch_size,
        "max-tokens": args.max_tokens,
        "fp16": args.fp16,
        "smoke": args.smoke,
    }
    return settings if args.num_shards is None else settings | {"num-shards": args.num_shards}


def begin(dest: Path, settings: dict[str, Any], shards_flag: str) -> None:
    """Start DEST/parts, or check that it was started with these settings.

    The folder appears with its settings in one step: of several processes that start together, one
    makes it, and the others compare. ``shards_flag`` is the flag for the number of shards.

    Raises:
        UsageError: DEST holds something else, or was made with other settings.
    """
    parts = dest / "parts"
    # Listed before it is looked for: another process may make it in between.
    there = {path.name for path in dest.iterdir()} if dest.is_dir() else set()
    if not (parts / "settings.json").is_file():
        if any(not name.startswith(NEW) for name in there):
            raise UsageError(
                f"DEST: got '{dest}', which holds other files; allowed: a new or empty folder, "
                "or one that this script began"
            )
        dest.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=NEW, dir=dest))
        new.chmod(dest.stat().st_mode)
        (new / "settings.json").write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
        try:
            new.rename(parts)
        except OSError:  # another process was faster
            shutil.rmtree(new)
    before = read_settings(dest)
    for name, value in settings.items():
        old = before.get(name)
        if old == value:
            continue
        flag = shards_flag if name == "num-shards" else _FILES.get(name, f"--{name}")
        given, begun = ("files", "others") if name in _FILES else (repr(value), repr(old))
        raise UsageError(
            f"{flag}: got {given}, but DEST ({dest}) was begun with {begun}; "
            "allowed: the same, or another DEST"
        )


def read_settings(dest: Path) -> dict[str, Any]:
    """Return the settings of DEST."""
    return json.loads((dest / "parts" / "settings.json").read_text(encoding="utf-8"))


# ---- batches and parts --------------------------------------------------------------------------


def make_batches(
    sizes: Sequence[int], max_tokens: int | None, batch_size: int | None
) -> list[list[int]]:
    """Divide sentences into batches of similar lengths, in an order that mixes short and long.

    Args:
        sizes: tokens of each sentence.
        max_tokens: of a batch, padding included; a longer sentence gets a batch of its own.
        batch_size: sentences in a batch.

    Returns:
        The numbers of the sentences, batch by batch; the same for the same arguments.
    """
    batches: list[list[int]] = []
    for i in sorted(range(len(sizes)), key=lambda i: (sizes[i], i)):
        full = (
            not batches
            or (batch_size is not None and len(batches[-1]) >= batch_size)
            or (max_tokens is not None and (len(batches[-1]) + 1) * sizes[i] > max_tokens)
        )
        if full:
            batches.append([])
        batches[-1].append(i)
    # Every shard gets its share of long sentences, so the remaining time can be estimated.
    random.Random(0).shuffle(batches)
    return batches


def part_path(dest: Path, shard: int, num_shards: int) -> Path:
    """Return the path of a shard's file."""
    return dest / "parts" / f"{shard}-of-{num_shards}.jsonl"


def read_part(path: Path) -> Iterator[tuple[Batch, int]]:
    """Yield the finished batches of a part, each with the length of the file up to its end.

    Reading stops at an incomplete line of a killed process.
    """
    end = 0
    with path.open("rb") as stream:
        for line in stream:
            end += len(line)
            try:
                batch = Batch(**json.loads(line))
            except (ValueError, TypeError):
                return
            if not line.endswith(b"\n"):
                return
            yield batch, end


def format_batch(batch: Batch) -> bytes:
    """Return a batch as the line that ``read_part`` reads."""
    return json.dumps(batch._asdict(), separators=(",", ":")).encode() + b"\n"


# ---- the command --------------------------------------------------------------------------------


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments, which distill.sh has checked."""
    parser.add_argument("data", type=Path)
    parser.add_argument("dest", type=Path)
    parser.add_argument("--path", required=True)
    parser.add_argument("--subset", required=True)
    parser.add_argument("--beam", type=int, required=True)
    parser.add_argument("--lenpen", type=float, required=True)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--num-shards", type=int, help="(default: that of DEST)")
    parser.add_argument("--shards-flag", default="--num-shards", help="its name in errors")
    parser.add_argument("--fp16", action="store_true")
    parser.add_argument("--smoke", action="store_true")


def run(args: argparse.Namespace) -> int:
    """Begin or check DEST."""
    begin(args.dest, settings_of(args), args.shards_flag)
    return 0
