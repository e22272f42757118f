"""``profile start-up``: an import, help, loading a model, a first sentence.

Each runs in a process of its own, and the processes alternate. The processor's time counts: other
work on the machine hardly changes it, unless two threads share a core.
"""

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...errors import UsageError, option_error
from ...extras import is_installed
from ...model.dictionary import Dictionary
from ...model.model import Model
from ...translator.model_folder import read
from ..data.journal import Journal
from ..data.table import Cells, Table, column
from ..measure import CTRANSLATE2
from ..measure.peers import converted_model
from .asked import Starts, words_of
from .harness import PARADEC, in_rounds

# A process begins with the memory of the one that starts it, to the system: that is a small one.
LAUNCH = """
import os, subprocess, sys, time
begin = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, used = os.wait4(process.pid, 0)
passed = time.perf_counter() - begin
status = os.waitstatus_to_exitcode(status)
print(status, used.ru_utime, used.ru_stime, passed, used.ru_maxrss / 1024)
"""


# A folder, its model in CTranslate2, a sentence; the text is processed by the folder's own rules.
PEER = """
import sys
from pathlib import Path
import ctranslate2
from fairseq_paradec.translator import model_folder
from fairseq_paradec.translator.text_processing import TextProcessing
path = Path(sys.argv[1])
text = TextProcessing(path, model_folder.read(path, "--model"))
translator = ctranslate2.Translator(sys.argv[2], device="cpu", compute_type="float32")
(result,) = translator.translate_batch([text.encode(sys.argv[3]).split()], beam_size=1)
print(text.decode(" ".join(result.hypotheses[0])))
"""


class Cost(NamedTuple):
    """What a process costs."""

    user: float  # seconds that the process itself computes
    system: float  # seconds that the kernel computes for it
    whole: float  # seconds by the clock
    memory: float  # MiB, the most that was resident, shared files among it


def measure(asked: Starts, journal: Journal) -> Table:
    """Measure the processes; return the table.

    Raises:
        UsageError: a process fails.
    """
    if (asked.model is None) == (asked.arch_size is None):
        raise option_error("--model", asked.model, "one of --model and --arch-size")
    with tempfile.TemporaryDirectory(prefix="paradec-start-up-") as room:
        model = asked.model or random_folder(str(asked.arch_size), Path(room))
        return _measured(asked, str(model), journal)


def _for_ctranslate2(path: Path) -> str:
    """Return a folder with a model folder's model as CTranslate2 loads it."""
    about = read(path, "--model")
    source, target = (
        Dictionary.read(path / f"dict.{language}.txt") for language in (about.source, about.target)
    )
    model = Model.read(path / about.model, source, target)
    return converted_model(model, [source.symbols, target.symbols])


def _measured(asked: Starts, model: str, journal: Journal) -> Table:
    """Measure the processes in rounds."""
    limits = [] if asked.model else ["--max-len-a", "1", "--max-len-b", "0"]
    translate = ["translate", "--text", asked.text, *limits, "--model"]
    load = "import sys, fairseq_paradec; fairseq_paradec.load(sys.argv[1])"
    shown = asked.arch_size or model
    starts = {
        "import torch": [sys.executable, "-c", "import torch"],
        "import fairseq_paradec": [sys.executable, "-c", "import fairseq_paradec"],
        "paradec --help": [*PARADEC, "--help"],
        "fairseq_paradec.load": [sys.executable, "-c", load, model],
        f"paradec {shlex.join(translate)} {shown}": [*PARADEC, *translate, model],
    }
    if asked.model and is_installed(CTRANSLATE2):
        folder = _for_ctranslate2(asked.model)
        peer = [sys.executable, "-c", PEER, model, folder, asked.text]
        starts["the same by CTranslate2, greedy, float32"] = peer
    results, others = in_rounds(
        asked, journal, "starts", [*starts.values()], [None], lambda start, _: cost(start)
    )
    medians = np.median([[own for (own,) in by_round] for by_round in results], axis=1)
    rows: list[Cells] = [
        {
            "start": start,
            column("processor_s", "processor, s", "s"): round(user, 2),
            column("kernel_s", "its kernel's, s", "s"): round(system, 2),
            column("clock_s", "by the clock, s", "s"): round(whole, 2),
            column("peak_MiB", "peak memory, MiB", "MiB"): round(memory),
        }
        for start, (user, system, whole, memory) in zip(starts, medians.tolist(), strict=True)
    ]
    notes = [
        f"Medians of {asked.rounds} rounds. Processor: the time that the process itself computes. "
        "Memory: the most that was resident, mapped files that processes share among it; "
        f"{others}.",
    ]
    return Table.of(rows, notes=notes)


def random_folder(size: str, room: Path) -> str:
    """Make a model folder of random weights, packed alone in int8; return its path."""
    import torch

    from ...plugin.files import new_checkpoint
    from .passes.models import random_pair

    pair = random_pair(size, words_of(size), 1, kinds=())
    for language in ("source", "target"):
        pair.task.source_dictionary.save(str(room / f"dict.{language}.txt"))
    options = {**vars(pair.args), "_name": "transformer"}
    weights = new_checkpoint("source", "target", options, pair.model.state_dict())
    torch.save(weights, room / "model.pt")
    del pair, weights
    given = [str(room), str(room / "packed"), "--path", str(room / "model.pt")]
    given += ["-s", "source", "-t", "target", "--engine-dtype", "int8", "--packed-only"]
    cost([*PARADEC, "pack", *given])
    return str(room / "packed")


def cost(command: list[str]) -> Cost:
    """Run a command; return what it costs.

    Raises:
        UsageError: it fails.
    """
    done = subprocess.run(
        [sys.executable, "-S", "-c", LAUNCH, *command],
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    status, *numbers = map(float, done.stdout.split())
    if status:
        last = done.stderr.strip().rpartition("\n")[2]
        raise UsageError(f"{shlex.join(command)}: exit status {status:.0f}: {last}")
    return Cost(*numbers)
