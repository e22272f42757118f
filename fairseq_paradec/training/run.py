"""A run from settings to the averaged model: begun, gone on with, or finished already."""

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import option_error
from . import child, log, machine
from .checkpoints import read_state, repair, vars_of, write_average
from .folder import AVERAGE, NOT_FLAGS, held, settle
from .plan import Plan, Request, plan
from .schedule import languages

#: A disk with fewer bytes is full.
FULL = 2**20

#: fairseq logs each so many updates.
LOG_INTERVAL = 10


def note(text: str) -> None:
    """Say how far the work is."""
    print(f"train: {text}", file=sys.stderr, flush=True)


def train(request: Request, save_dir: Path | None, threads: int | None = None) -> int:
    """Train a model, or go on, and average its last checkpoints; return the exit status.

    Args:
        request: what is trained.
        save_dir: of the run; None: a temporary folder.
        threads: of each process on a CPU; None: the cores shared out evenly.

    Raises:
        UsageError: a mistake in flags or files, or another run in ``save_dir``.
    """
    threads = threads or max(1, machine.cores() // request.processes)
    gpus = machine.gpus()
    if not gpus and request.processes > machine.processors():
        allowed = f"at most {machine.processors()}, the number of CPU cores"
        raise option_error("--processes", request.processes, allowed)
    made = plan(request, gpus, lambda: _pays(threads))
    with _folder(save_dir) as folder, held(folder, note) as lock:
        try:
            with child.Signals() as signals:
                return _train(request, made, folder, lock, signals, threads, save_dir is None)
        except child.Stopped as stopped:
            kept = f"; checkpoints are kept in {folder}, and the same command goes on"
            note(f"stopped{kept if save_dir else ''}")
            return stopped.status


def _train(
    request: Request,
    made: Plan,
    folder: Path,
    lock: int,
    signals: child.Signals,
    threads: int,
    passing: bool,
) -> int:
    """Do what is not done; see ``train``."""
    lines = settle(folder, request.data, made.lines, made.chosen)
    flags = [word for line in lines if line[0] not in NOT_FLAGS for word in line]
    average = next(int(line[1]) for line in lines if line[0] == AVERAGE)
    model, path = folder / "model.pt", folder / "train.log"
    if model.is_file():
        note(f"already trained: {model}")
        return 0
    done = repair(folder)
    flags += _start_rows(folder) if done else []
    log_is = "" if passing else f" (log: {path})"  # it goes with the folder
    if done >= _last(flags, "--max-update", done + 1):  # fairseq would do one more
        note(f"[1/2] training was finished: {done} updates")
    else:
        note(f"[1/2] training: {request.preset}, {made.length}, {done} updates done{log_is}")
        where = ["--save-dir", child.word(folder), "--no-progress-bar", "--log-format", "json"]
        pair = languages(request.data)  # fairseq would take the first name in the folder
        where += ["--log-interval", str(LOG_INTERVAL), "-s", pair[0], "-t", pair[1]]
        commands = [child.command(request.data, [*where, *flags])]
        if request.processes > 1 and "--cpu" in flags:
            commands = child.ranks(commands[0], request.processes)
        env = machine.environment(threads, "--fairseq-updates" not in flags)
        status = child.run(commands, env, path, lock, signals, made.updates, note)
        if status:
            # Of a flag that fairseq does not know, the last line alone says something.
            tail = path.read_text("utf-8", "replace").splitlines()[-1 if status == 2 else -20 :]
            print("\n".join(tail), file=sys.stderr)
            note(f"fairseq-train failed with status {status}{log_is}")
            if (free := shutil.disk_usage(folder).free) < FULL:  # the log is cut short, too
                note(f"the disk of {folder} is full ({free / 1e6:.1f} MB are left)")
            return 1
    if not passing and path.is_file() and log.draw(path, folder / "curve.png"):
        note(f"curve: {folder / 'curve.png'}")
    note(f"[2/2] averaging the last {average} checkpoints")
    write_average(folder, average, model)
    if not passing:
        note(f"done: {model}")
    return 0


def _start_rows(folder: Path) -> list[str]:
    """Return the flag that a reordered model lacks whose run began before there was that flag."""
    config = vars_of(read_state(folder / "checkpoint_last.pt")["cfg"]["model"])
    older = "directions" in config and "start_rows" not in config
    return ["--start-rows", "tokens"] if older else []


def _last(flags: Sequence[str], name: str, otherwise: int) -> int:
    """Return the last value of a flag."""
    value = otherwise
    for word, after in zip(flags, [*flags[1:], ""]):
        if word == name:
            value = int(after)
        elif word.startswith(f"{name}="):
            value = int(word.partition("=")[2])
    return value


def _pays(threads: int) -> bool:
    """Measure bfloat16, and say what it gives."""
    pays, ratio = machine.bfloat16_pays(threads)
    decision = "on" if pays else "off"
    note(f"--autocast {decision}: products in bfloat16 have {ratio:.2g} times the speed of fp32")
    return pays


@contextlib.contextmanager
def _folder(save_dir: Path | None) -> Iterator[Path]:
    """Give the run's folder, or a temporary one."""
    if save_dir is not None:
        yield save_dir
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        yield Path(name)
