"""fairseq's commands as a user runs them, each in a process of its own, on data made up here."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ROOT / "fairseq_paradec"
DEMO = ROOT / "data-bin" / "demo.en-de"

#: Sentences in the test set of ``write_corpus``: 40 = 5 * 7 + 5, so that batches of 7 leave a rest.
TEST_SENTENCES = 40

#: The smallest model that trains: 1+1 layers, 16 dimensions.
TRAINING = (
    "--arch transformer --encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 16 "
    "--decoder-embed-dim 16 --encoder-ffn-embed-dim 32 --decoder-ffn-embed-dim 32 "
    "--encoder-attention-heads 2 --decoder-attention-heads 2 --optimizer adam --lr 0.01 "
    "--criterion label_smoothed_cross_entropy --label-smoothing 0.1 --max-tokens 500 "
    "--no-epoch-checkpoints --no-progress-bar --eval-bleu --best-checkpoint-metric bleu "
    "--maximize-best-checkpoint-metric"
).split()

#: What is done to a folder of files that is refused then.
Spoil = Callable[[Path], object]

#: Environment of commands in whose processes neither torch nor fairseq can be imported.
WITHOUT_TORCH = {"PYTHONPATH": os.pathsep.join((str(ROOT / "tests/support/blocked"), str(ROOT)))}

#: Seconds after which a command is taken for one that hangs.
LONGEST = 300


def run_python(
    code: str,
    *args: object,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
    longest: float = LONGEST,
) -> subprocess.CompletedProcess[str]:
    """Run Python code in a new process, with no folder but the installed ones on sys.path.

    It is a fork of a process that has imported fairseq and nothing of the package, which saves four
    seconds; ``env`` is more of its environment, ``args`` sys.argv after the first.
    """
    nursery = Nursery.IDLE.pop() if Nursery.IDLE else Nursery()
    words, here = [*map(str, args)], cwd or Path.cwd()
    result = nursery.run(code, words, here, environment(env), stdin, longest)
    Nursery.IDLE.append(nursery)  # one in whose use something went wrong never returns
    return result


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a user's commands find there."""
    ours = ("PYTHONPATH", "PYTHONUNBUFFERED", "LOGLEVEL")
    usual = {k: v for k, v in os.environ.items() if k not in ours}
    return usual | {"OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"} | {**(more or {})}


class Nursery:
    """A process that has imported fairseq, and forks for each piece of code that it is told.

    The fork takes over the input, output, folder, environment and arguments that a new process
    would have been given, and runs the code in ``__main__``, in a process group of its own. A
    Nursery has one fork at a time: commands that run side by side need one each.
    """

    IDLE: ClassVar[list[Nursery]] = []
    PROGRAM = """
import json, logging, os, re, sys
import fairseq.options, fairseq_cli, numpy, torch
print(json.dumps("ready"), flush=True)
while True:
    asked = sys.stdin.readline()
    if not asked:
        os._exit(0)
    child = os.fork()
    if child == 0:
        break
    print(json.dumps(child), flush=True)
    print(json.dumps(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])), flush=True)
os.setpgid(0, 0)
asked = json.loads(asked)
os.environ.clear()
os.environ.update(asked["env"])
os.chdir(asked["cwd"])
for number, path in enumerate(asked["files"]):
    os.dup2(os.open(path, os.O_WRONLY if number else os.O_RDONLY), number)
numpy.random.seed()
torch.seed()
# fairseq_cli.train sets up its log before it imports fairseq.
if re.search("fairseq_cli(.| import )train", asked["code"]):
    logging.root.handlers.clear()
sys.argv = ["-c", *asked["argv"]]
exec(compile(asked["code"], "<string>", "exec"), {"__name__": "__main__"})
"""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", self.PROGRAM],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
            cwd=ROOT.anchor,
        )
        assert self._answer() == "ready"

    def run(
        self,
        code: str,
        argv: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        stdin: str,
        longest: float,
    ) -> subprocess.CompletedProcess[str]:
        """Run code; arguments, result and errors are those of ``subprocess.run``."""
        with tempfile.TemporaryDirectory(prefix="paradec-nursery-") as folder:
            files = [Path(folder, name) for name in ("in", "out", "err")]
            for file, text in zip(files, (stdin, "", "")):
                file.write_text(text, encoding="utf-8")
            asked = {"code": code, "argv": argv, "cwd": str(cwd), "env": env}
            asked["files"] = [*map(str, files)]
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            child, status = self._answer(), None
            try:
                if select.select([self._process.stdout], [], [], longest)[0]:
                    status = self._answer()
            finally:  # Ctrl-C does not reach the fork
                if status is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(child, signal.SIGKILL)
            out, err = (file.read_text(encoding="utf-8") for file in files[1:])
        if status is None:
            print(err[-5000:])  # pytest shows it
            raise subprocess.TimeoutExpired(code, longest, out, err)
        return subprocess.CompletedProcess(code, status, out, err)

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


def alone(*words: object) -> subprocess.CompletedProcess[str]:
    """Run ``paradec`` where neither torch nor fairseq can be imported."""
    given = [sys.executable, "-m", "fairseq_paradec", *map(str, words)]
    env = environment(WITHOUT_TORCH)
    return subprocess.run(given, capture_output=True, text=True, env=env, timeout=LONGEST)


def wait_until(
    condition: Callable[[], object], process: subprocess.Popen[Any] | None = None
) -> None:
    """Wait until something has come about: ten minutes, and while the process runs, at most."""
    end = time.monotonic() + 600
    while not condition():
        assert process is None or process.poll() is None, "it has ended"
        assert time.monotonic() < end, "waited for ten minutes"
        time.sleep(0.005)


def fairseq(
    command: str, *args: object, before: str = "", **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run ``fairseq-COMMAND``; ``before`` is Python code to be run first in the same process."""
    code = f"{before}\nfrom fairseq_cli.{command} import cli_main\ncli_main()"
    return run_python(code, *args, **more)


def succeed(result: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """Return the result of a command that must have gone well; show its errors if not."""
    assert result.returncode == 0, result.stderr[-4000:] + result.stdout[-1000:]
    return result


def write_corpus(folder: Path, words: int = 20) -> None:
    """Write random sentence pairs, train, valid and test: w3 in English is v3 in German."""
    rng = random.Random(1)
    for split, count in (("train", 200), ("valid", 13), ("test", TEST_SENTENCES)):
        # Every word occurs, so that the size of the dictionary is known.
        lines = [list(range(words))] * (split == "train")
        lines += [[rng.randrange(words) for _ in range(rng.randint(2, 9))] for _ in range(count)]
        lines = lines[:count]
        for language, letter in (("en", "w"), ("de", "v")):
            text = "".join(" ".join(f"{letter}{i}" for i in line) + "\n" for line in lines)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")


def preprocess(folder: Path, words: int = 20) -> Path:
    """Write a corpus into the folder, binarise it, and return the data-bin folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_corpus(folder, words)
    prefixes: Sequence[object] = [
        item for split in ("train", "valid", "test") for item in (f"--{split}pref", folder / split)
    ]
    data = folder / "data-bin"
    succeed(fairseq("preprocess", "-s", "en", "-t", "de", *prefixes, "--destdir", data))
    return data


def put(name: str, change: bytes | Callable[[bytes], bytes]) -> Spoil:
    """Write a file of a folder anew: these bytes, or what becomes of those that it has."""

    def apply(folder: Path) -> None:
        path = folder / name
        path.write_bytes(change if isinstance(change, bytes) else change(path.read_bytes()))

    return apply


def cut(name: str, size: int) -> Spoil:
    """Keep the first bytes of a file of a folder; -9 is all but nine."""
    return put(name, lambda was: was[:size])


def lose(pattern: str) -> Spoil:
    """Remove files of a folder."""
    return lambda folder: [file.unlink() for file in folder.glob(pattern)]


def lines_of(text: str, kind: str) -> list[str]:
    """Return the lines of fairseq's output that start with, for example, ``H-``."""
    return [line for line in text.splitlines() if line.startswith(f"{kind}-")]
