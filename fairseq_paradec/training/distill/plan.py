"""What distillation translates: settings, batches, parts, and the teacher.

Batches are made once from the whole subset, so a sentence has the same batch, and the same
translation to the last bit, for any number of workers and interruptions. A part is some batches;
its file has one JSON line for each.
"""

import json
import os
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from ...arrival import log_level_kept
from ...errors import UsageError, option_error
from ...files import check_inputs, checksum
from ...translator.corpus.crews import Work
from ...translator.corpus.parts import Part

#: Sentences that --smoke translates.
SMOKE_SENTENCES = 64

#: Batches of a part, and tokens and sentences that it has at most if it is more than one.
BATCHES, TOKENS, SENTENCES = 8, 16000, 1024

#: Settings that are checksums of files, and the flags of these files.
FILES = {"data": "DATA", "languages": "DATA", "teachers": "--path"}


@dataclass(frozen=True)
class Request:
    """The translations that a user asks for."""

    data: Path
    subset: str
    path: str  # of the teachers, with os.pathsep between them
    beam: int
    lenpen: float = 1.0
    batch_size: int | None = None
    max_tokens: int | None = None
    fp16: bool = False
    smoke: bool = False  # a try-out of some sentences
    engine_dtype: str = "fp32"
    no_loops: bool = False


#: From numbers of sentences to their best translations, without ``</s>``.
Translate = Callable[[list[int]], list[list[int]]]


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
    subsets = {path.name.split(".")[0] for path in data.glob("*.*-*.*.idx")}
    raise UsageError(
        f"--subset: got '{subset}'; DATA ({data}) holds: {' '.join(sorted(subsets)) or 'none'}"
    )


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


def settings_of(request: Request) -> dict[str, Any]:
    """Return all settings of the translations, with checksums of files."""
    pair = languages(request.data, request.subset)
    files = [request.data / f"dict.{language}.txt" for language in pair]
    for path in source_paths(request.data, request.subset, pair):
        files += [path.with_name(path.name + end) for end in (".bin", ".idx")]
    for path in files:
        if not path.is_file():
            raise UsageError(f"DATA: got '{request.data}', in which {path.name} is missing")
    return {
        "subset": request.subset,
        "languages": list(pair),
        "data": {path.name: checksum(path) for path in files},
        "teachers": [checksum(Path(path)) for path in request.path.split(os.pathsep)],
        "beam": request.beam,
        "lenpen": request.lenpen,
        "batch-size": request.batch_size,
        "max-tokens": request.max_tokens,
        "fp16": request.fp16,
        "smoke": request.smoke,
        # Folders that were begun before these settings existed have none.
        **({} if request.engine_dtype == "fp32" else {"engine-dtype": request.engine_dtype}),
        **({"no-loops": True} if request.no_loops else {}),
    }


# ---- batches and parts --------------------------------------------------------------------------


def load_sources(data: Path, settings: dict[str, Any]) -> Any:
    """Load the source side of the subset, with all the pieces of a training set."""
    from fairseq.data import ConcatDataset, Dictionary, data_utils

    words = Dictionary.load(str(data / f"dict.{settings['languages'][0]}.txt"))
    paths = source_paths(data, settings["subset"], settings["languages"])
    return ConcatDataset([data_utils.load_indexed_dataset(str(p), words) for p in paths])


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
    # Every part gets its share of long sentences, so the remaining time can be estimated.
    random.Random(0).shuffle(batches)
    return batches


def batches_of_part(max_tokens: int | None, batch_size: int | None) -> int:
    """Return how many batches a part has: fewer of large ones, so that parts end often.

    A part that is begun is lost when the process ends.
    """
    most = [BATCHES, TOKENS // (max_tokens or 1), SENTENCES // (batch_size or 1)]
    return max(1, min(most))


def parts_of(sources: Any, settings: dict[str, Any]) -> Iterator[Part]:
    """Yield the parts of a subset; their work is batches of sentences' numbers."""
    sizes = sources.sizes.tolist()
    sizes = sizes[:SMOKE_SENTENCES] if settings["smoke"] else sizes
    batches = make_batches(sizes, settings["max-tokens"], settings["batch-size"])
    size = batches_of_part(settings["max-tokens"], settings["batch-size"])
    for first in range(0, len(batches), size):
        some = batches[first : first + size]
        yield Part(f"{first:09}.jsonl", sum(map(len, some)), some)


def content(translate: Translate, batches: list[list[int]]) -> bytes:
    """Translate a part; return its file's content."""
    rows = ({"ids": ids, "targets": translate(ids)} for ids in batches)
    return b"".join(json.dumps(row, separators=(",", ":")).encode() + b"\n" for row in rows)


# ---- the teacher --------------------------------------------------------------------------------


def teacher(data: Path, path: str, settings: dict[str, Any], device: str) -> Work:
    """Load the teachers; return what translates parts.

    Raises:
        UsageError: a checkpoint does not load or was trained for other languages; or this machine
            has another one than the driver, or other data.
    """
    from ...registry import beam_search

    with log_level_kept():
        from ...plugin.tasks import loading

    check_inputs(str(data), path)
    if [checksum(Path(file)) for file in path.split(os.pathsep)] != settings["teachers"]:
        raise option_error("--path", path, "the same teacher on all machines")
    for name, wanted in settings["data"].items():
        if checksum(data / name) != wanted:
            raise option_error("DATA", str(data / name), "the same data on all machines")
    models, task = loading.load(str(data), path)
    trained = [task.cfg.source_lang, task.cfg.target_lang]
    if trained != settings["languages"]:
        allowed = f"one for {'-'.join(settings['languages'])}, as DATA's files are named"
        raise option_error("--path", f"a teacher for {'-'.join(trained)}", allowed)
    models = [(m.half() if settings["fp16"] else m).to(device) for m in models]
    dtype = settings.get("engine-dtype")
    generator = loading.decoder(
        task,
        models,
        decoding=beam_search(models, settings["beam"]),
        beam=settings["beam"],
        lenpen=settings["lenpen"],
        **({"engine_dtype": dtype} if dtype else {}),
    )
    sources = load_sources(data, settings)
    return partial(content, by_number(task, models, generator, sources, device))


def by_number(task: Any, models: list[Any], generator: Any, sources: Any, device: Any) -> Translate:
    """Return a function from numbers of sentences to their best translations."""
    import torch
    from fairseq.data import LanguagePairDataset

    dataset = LanguagePairDataset(
        sources, sources.sizes, task.source_dictionary, left_pad_source=task.cfg.left_pad_source
    )
    eos = task.target_dictionary.eos()

    def translate(ids: list[int]) -> list[list[int]]:
        sample = dataset.collater([dataset[i] for i in ids])
        order = sample["id"].tolist()
        for name, tensor in sample["net_input"].items():
            sample["net_input"][name] = tensor.to(device)
        hypos = task.inference_step(generator, models, sample)
        best = [some[0]["tokens"] for some in hypos]
        words = iter(torch.cat(best).tolist())  # from a device in one copy
        outputs = {
            i: [t for t in islice(words, len(tokens)) if t != eos] for i, tokens in zip(order, best)
        }
        return [outputs[i] for i in ids]

    return translate
