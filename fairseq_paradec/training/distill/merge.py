"""Make a data folder of all the parts: the last step of distillation.

Everything is written beside its place, synced, and renamed when complete. distilled.json comes
last, so that what it speaks of is on the disk.
"""

import json
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UsageError
from ...translator.corpus.parts import Part, sync
from ...translator.corpus.parts import write as write_whole
from . import plan

#: Settings and counts, written last.
REPORT = "distilled.json"


def collect(dest: Path, parts: Iterable[Part]) -> list[np.ndarray]:
    """Read all parts; return the translations in the order of the sentences.

    Raises:
        UsageError: a part is missing, or holds other sentences.
    """
    translations: dict[int, np.ndarray] = {}
    for part in parts:
        path = dest / "parts" / part.name
        try:
            rows = [json.loads(row) for row in path.read_bytes().splitlines()]
            whole = [row["ids"] for row in rows] == part.work
        except (ValueError, OSError):
            whole = False
        if not whole:
            raise UsageError(f"{path} is not the part that these settings give; remove it")
        for row in rows:
            translations |= {i: np.array(t, np.int32) for i, t in zip(row["ids"], row["targets"])}
    return [translations[i] for i in sorted(translations)]


def write(
    folder: Path, settings: dict[str, Any], sources: Any, targets: list[np.ndarray], dicts: Any
) -> dict[str, int]:
    """Write the subset, binarised and as text; return the counts."""
    import torch
    from fairseq.data import indexed_dataset

    (folder / "text").mkdir(parents=True)
    subset, pair = settings["subset"], settings["languages"]
    stem = f"{subset}.{'-'.join(pair)}"
    prefixes = [str(folder / f"{stem}.{language}") for language in pair]
    builders = [
        indexed_dataset.make_builder(f"{prefix}.bin", "mmap", vocab_size=len(words))
        for prefix, words in zip(prefixes, dicts)
    ]
    counts = {"sentences": len(targets), "left out": 0}
    text = folder / "text"
    with (
        (text / f"{subset}.{pair[0]}").open("w", encoding="utf-8") as source_text,
        (text / f"{subset}.{pair[1]}").open("w", encoding="utf-8") as target_text,
        (text / "left-out.txt").open("w", encoding="utf-8") as left_out,
    ):
        for i, target in enumerate(targets):
            lines = [
                words.string(torch.as_tensor(tokens))
                for words, tokens in zip(dicts, (sources[i], target))
            ]
            print(lines[0], file=source_text)
            print(lines[1], file=target_text)
            if not len(target) or (settings.get("no-loops") and loops(target.tolist())):
                counts["left out"] += 1
                print(i, len(sources[i]), lines[0], sep="\t", file=left_out)
                continue
            builders[0].add_item(sources[i])
            builders[1].add_item(torch.tensor([*target, dicts[1].eos()]))
    for builder, prefix in zip(builders, prefixes):
        builder.finalize(f"{prefix}.idx")
    return counts


def loops(tokens: Sequence[int], longest: int = 4, times: int = 3) -> bool:
    """Return whether up to ``longest`` tokens stand so many times in a row."""
    for size in range(1, longest + 1):
        same = 0  # how many tokens in a row are those of ``size`` places before
        for token, before in zip(tokens[size:], tokens, strict=False):
            same = same + 1 if token == before else 0
            if same == size * (times - 1):
                return True
    return False


def copy_rest(data: Path, folder: Path, settings: dict[str, Any]) -> None:
    """Copy the dictionaries and the other subsets, with their raw text where DATA has it."""
    source, target = map(re.escape, settings["languages"])
    replaced = plan.pieces(data, settings["subset"], settings["languages"])
    pair = rf"({source}-{target}|{target}-{source})\.({source}|{target})\.(bin|idx)"
    for path in sorted(data.iterdir()):
        other = re.fullmatch(rf"(.+)\.{pair}", path.name)
        dictionary = re.fullmatch(rf"dict\.({source}|{target})\.txt", path.name)
        if dictionary or (other and other[1] not in replaced):
            shutil.copyfile(path, folder / path.name)
    for path in sorted((data / "raw").glob("*")):
        text = re.fullmatch(rf"(.+)\.({source}|{target})", path.name)
        if text and text[1] not in replaced:
            (folder / "raw").mkdir(exist_ok=True)
            shutil.copyfile(path, folder / "raw" / path.name)


def merge(
    data: Path, dest: Path, settings: dict[str, Any], sources: Any, parts: Iterable[Part]
) -> dict[str, int]:
    """Make DEST a data folder, of which this process has the lock.

    Returns:
        The numbers of all sentences and of those left out.

    Raises:
        UsageError: a part is missing, or holds other sentences.
    """
    from fairseq.data import Dictionary

    dicts = [Dictionary.load(str(data / f"dict.{lang}.txt")) for lang in settings["languages"]]
    targets = collect(dest, parts)
    work = dest / ".merging"
    shutil.rmtree(work, ignore_errors=True)
    counts = write(work, settings, sources, targets, dicts)
    copy_rest(data, work, settings)
    places = sorted(work.rglob("*"))  # a folder comes before what is in it
    for path in places:
        if path.is_file():
            sync(path)
    for path in places:
        place = dest / path.relative_to(work)
        if path.is_dir():
            place.mkdir(exist_ok=True)
        else:
            path.replace(place)
    for folder in [dest, *(dest / path.relative_to(work) for path in places if path.is_dir())]:
        sync(folder)
    shutil.rmtree(work)
    write_whole(dest / REPORT, json.dumps(settings | counts, indent=1).encode() + b"\n")
    return counts
