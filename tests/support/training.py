"""Where the shell scripts of training lie, their environment, and a kill in the middle of one."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from support.commands import ROOT, wait_until

SCRIPTS = ROOT / "scripts"
ENV = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHON": sys.executable}


def cut_short(command: list[str], made: Path) -> str:
    """Kill a recipe as soon as it has made something, give it again, and return what it says."""
    process = subprocess.Popen(command, env=ENV, stderr=subprocess.DEVNULL, start_new_session=True)
    wait_until(lambda: list(made.parent.glob(made.name)), process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    result = subprocess.run(command, env=ENV, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout + result.stderr


def write_pairs(folder: Path, lengths: Sequence[int], valid: int = 2) -> Path:
    """Write a data folder of such sentences, on both sides, without words to speak of."""
    from fairseq.data import Dictionary, indexed_dataset

    folder.mkdir(parents=True)
    for language in ("en", "de"):
        words = Dictionary()
        words.add_symbol(f"a-{language}")
        words.save(str(folder / f"dict.{language}.txt"))
        for subset, sizes in (("train", lengths), ("valid", lengths[:valid])):
            stem = folder / f"{subset}.en-de.{language}"
            builder = indexed_dataset.make_builder(f"{stem}.bin", "mmap", vocab_size=len(words))
            for size in sizes:
                builder.add_item(torch.tensor([4] * (size - 1) + [2]))
            builder.finalize(f"{stem}.idx")
    return folder
