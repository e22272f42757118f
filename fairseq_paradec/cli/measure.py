"""What every measuring command shares: loading, the machine's description, tables as JSON."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shlex
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils


def load(data: str, path: str) -> tuple[list[Any], Any]:
    """Load a checkpoint for inference in fp32.

    Args:
        data: fairseq's data folder.
        path: the checkpoint, or several with ``:`` between them.

    Returns:
        The models and the task.
    """
    models, cfg, task = checkpoint_utils.load_model_ensemble_and_task(
        path.split(os.pathsep), arg_overrides={"data": data}
    )
    for model in models:
        model.float().prepare_for_inference_(cfg)
    return models, task


def batches(task: Any, subset: str, batch_size: int, limit: int | None) -> Iterator[dict[str, Any]]:
    """Yield a subset's batches in fairseq's order (by length), up to ``limit`` sentences."""
    if subset not in task.datasets:
        task.load_dataset(subset)
    dataset = task.dataset(subset)
    count = 0
    iterator = task.get_batch_iterator(dataset, max_sentences=batch_size)
    for sample in iterator.next_epoch_itr(shuffle=False):
        if limit is not None and count >= limit:
            return
        count += sample["nsentences"]
        yield sample


def generator(task: Any, models: Sequence[Any], **options: Any) -> Any:
    """Build a generator from options named as their flags are."""
    return task.build_generator(list(models), argparse.Namespace(**options))


def circumstances() -> dict[str, Any]:
    """Describe command, date, machine and versions, for the head of a result."""
    names = ("torch", "numpy", "fairseq-fixed", "fairseq")
    versions = {"python": platform.python_version()}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    program = Path(sys.argv[0])
    return {
        "command": f"python -m fairseq_paradec.cli.{program.stem} " + shlex.join(sys.argv[1:]),
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


def save(path: Path, title: str, notes: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    """Write a table as JSON; ``paradec-results`` renders it.

    Args:
        path: the file to write.
        title: the section's title.
        notes: what a reader must know to read the numbers right.
        rows: one dict per row, all with the same keys, which are the columns.
    """
    document = {
        "schema": "fairseq_paradec.table",
        "version": 1,
        "title": title,
        "notes": list(notes),
        **circumstances(),
        "rows": list(rows),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
