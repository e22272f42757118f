"""What the commands share: arguments, loading, the machine's description, tables as JSON."""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import os
import platform
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils
from sacremoses import MosesDetokenizer

from .. import __version__, images
from ..analysis.quality import ImageQuality, Quality, SummaryQuality, TranslationQuality
from ..analysis.trace_view import printable
from ..errors import UsageError, option_error

# Of the JSON files: another version is another meaning of their keys.
SCHEMA, VERSION = "fairseq_paradec.table", 1

# What images are decoded as.
IMAGE_TASK = "image_super_resolution"

# The names that a data folder of summarisation has for its sides.
DOCUMENT, SUMMARY = "document", "summary"


def whole_number(text: str) -> int:
    """Read an argument that is a whole number from 1 up.

    Raises:
        ArgumentTypeError: it is none; argparse adds the flag's name.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: a whole number from 1 up")
    return int(text)


def positive(text: str) -> float:
    """Read an argument that is a number above 0.

    Raises:
        ArgumentTypeError: it is none; argparse adds the flag's name.
    """
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: a number above 0")
    return value


def whole_numbers(text: str) -> list[int]:
    """Read an argument that is a list of whole numbers with commas between them."""
    return [whole_number(part) for part in text.split(",")]


def check_inputs(data: str, path: str, flag: str = "DATA") -> None:
    """Refuse a data folder or a checkpoint that is not there.

    Args:
        data: fairseq's data folder.
        path: the checkpoint, or several with ``:`` between them.
        flag: the data folder's, for the message.

    Raises:
        UsageError: one is missing.
    """
    if not os.path.isdir(data):
        raise option_error(flag, data, "a folder made by fairseq-preprocess")
    for one in path.split(os.pathsep):
        if not os.path.isfile(one):
            raise option_error("--path", one, "a fairseq checkpoint")


def run(name: str, command: Callable[[], int]) -> int:
    """Run a command; return its exit status: 2 for a user's mistake, 130 for Ctrl-C.

    Args:
        name: as typed, for the message.
        command: what to do.
    """
    try:
        return command()
    except (UsageError, OSError) as error:
        lines = map(printable, str(error).split("\n"))  # it may quote a file's texts
        print(f"{name}: error: " + "\n".join(lines), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{name}: stopped", file=sys.stderr)
        return 130


def load(data: str, path: str) -> tuple[list[Any], Any]:
    """Load a checkpoint for inference in fp32.

    Args:
        data: fairseq's data folder.
        path: the checkpoint, or several with ``:`` between them.

    Returns:
        The models and the task.

    Raises:
        UsageError: the data are images, and the model was not trained on such.
    """
    models, cfg, task = checkpoint_utils.load_model_ensemble_and_task(
        path.split(os.pathsep), arg_overrides={"data": data}
    )
    if holds_images(data) and not hasattr(task, "image_sizes"):
        allowed = f"a model of --task {IMAGE_TASK}: DATA ({data}) holds images"
        raise option_error("--path", path, allowed)
    for model in models:
        model.float().prepare_for_inference_(cfg)
    return models, task


def batches(task: Any, subset: str, batch_size: int, limit: int | None) -> Iterator[dict[str, Any]]:
    """Yield a subset's batches in fairseq's order, by length.

    Args:
        task: with the data folder.
        subset: its name, for example ``test``.
        batch_size: sentences per batch; the last one holds the rest.
        limit: how many sentences, evenly chosen from short to long whatever the batch size; None
            for all.

    Raises:
        UsageError: there is no such subset.
    """
    if subset not in task.datasets:
        task.load_dataset(subset)
    dataset = task.dataset(subset)
    order = by_length(dataset)
    if limit is not None:
        order = order[:: max(1, len(order) // limit)][:limit]
    for start in range(0, len(order), batch_size):
        yield dataset.collater([dataset[i] for i in order[start : start + batch_size]])


def by_length(dataset: Any) -> list[int]:
    """Return the numbers of a subset's sentences, from short to long.

    Those of equal length come in the same order each time; fairseq shuffles them, unless the subset
    is called ``test``.
    """
    sizes, targets = dataset.src_sizes, dataset.tgt_sizes
    numbers = range(len(sizes))
    if targets is None:
        return sorted(numbers, key=sizes.__getitem__)
    return sorted(numbers, key=lambda i: (sizes[i], targets[i]))


def generator(task: Any, models: Sequence[Any], **options: Any) -> Any:
    """Build a generator from options named as their flags are."""
    return task.build_generator(list(models), argparse.Namespace(**options))


def holds_images(data: str) -> bool:
    """Say whether a data folder is of images, as ``prepare_super_resolution.py`` makes it."""
    return (Path(data) / images.SIZES).is_file()


def text_language(data: str, language: str) -> str | None:
    """Return the language that the text of one side is detokenised as.

    Documents and summaries are taken for English: their language is not in the folder. ROUGE, which
    counts letters and digits alone, does not see what Moses does in another one.

    Args:
        data: fairseq's data folder.
        language: its name for the side.

    Returns:
        As in ``de``; None for images, whose numbers are no language.
    """
    if holds_images(data):
        return None
    return "en" if language in (DOCUMENT, SUMMARY) else language


def quality(data: str, language: str, references: Sequence[str]) -> Quality:
    """Return what scores the outputs for a data folder: images, summaries or translations.

    Args:
        data: fairseq's data folder.
        language: its name for the targets.
        references: one per output, as ``plain_text`` makes them.

    Raises:
        UsageError: the references are not of that kind, or the images' sizes cannot be read.
    """
    if holds_images(data):
        return ImageQuality(references, images.read_sizes(data)[1])
    return SummaryQuality(references) if language == SUMMARY else TranslationQuality(references)


def plain_text(symbols: Sequence[str], language: str | None) -> str:
    """Join sub-words (subword-nmt's or sentencepiece's) and Moses tokens to plain text.

    Args:
        symbols: of a dictionary, without ``</s>``.
        language: of ``text_language``; None joins them with spaces, as they are.
    """
    line = " ".join(symbols)
    if language is None:
        return line
    if "\u2581" in line:
        return line.replace(" ", "").replace("\u2581", " ").strip()
    return _detokenizer(language).detokenize((line + " ").replace("@@ ", "").split())


@functools.cache
def _detokenizer(language: str) -> MosesDetokenizer:
    return MosesDetokenizer(lang=language)


def circumstances(command: str, argv: Sequence[str] | None) -> dict[str, Any]:
    """Describe command, date, machine and versions, for the head of a result.

    Args:
        command: the module's name.
        argv: its arguments; None means the process's own.
    """
    names = ("torch", "numpy", "fairseq-fixed", "fairseq", "sacrebleu", "ctranslate2")
    versions = {"fairseq_paradec": __version__, "python": platform.python_version()}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    arguments = shlex.join(sys.argv[1:] if argv is None else argv)
    return {
        "command": f"python -m fairseq_paradec.cli.{command} {arguments}",
        "date": datetime.date.today().isoformat(),
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        },
        "versions": versions,
    }


def _processor() -> str:
    """Return the processor's name, as well as this system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def save(
    path: Path,
    title: str,
    notes: Sequence[str],
    rows: Sequence[dict[str, Any]],
    made_by: dict[str, Any],
) -> None:
    """Write a table as JSON; ``paradec-results`` renders it.

    Args:
        path: the file to write.
        title: the section's title.
        notes: what a reader must know to read the numbers right.
        rows: one dict per row, all with the same keys, which are the columns.
        made_by: the ``circumstances``.
    """
    document = {
        "schema": SCHEMA,
        "version": VERSION,
        "title": title,
        "notes": list(notes),
        **made_by,
        "rows": list(rows),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
