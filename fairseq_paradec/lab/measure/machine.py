"""The machine of a measurement: its description, its load, and the memory that work needs."""

import contextlib
import datetime
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from ... import __version__
from ...decoding.provenance import processor
from ...errors import UsageError
from ...memory import give_back_memory
from ...threads import num_threads

# Cores that other processes may use before a timed round.
BUSY_CORES = 0.25
# Seconds of a check of the load, and the number of checks.
WATCH_SECONDS, ATTEMPTS = 0.5, 20

MIB = 2**20

T = TypeVar("T")


def circumstances(argv: Sequence[str]) -> dict[str, Any]:
    """Describe command (``argv`` behind ``paradec``), date, machine and versions of a result."""
    names = (
        "torch",
        "numpy",
        "fairseq-fixed",
        "fairseq",
        "sacrebleu",
        "ctranslate2",
        "transformers",
    )
    versions = {"fairseq_paradec": __version__, "python": platform.python_version()}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "command": shlex.join(["paradec", *argv]),
        "date": datetime.date.today().isoformat(),
        "machine": {
            "processor": processor(),
            "cores": os.cpu_count(),
            "threads": num_threads(),
            "accelerator": _accelerator(),
        },
        "versions": versions,
    }


def _accelerator() -> str:
    """Return the name of the GPU; without torch, which alone computes there, ``none``."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return "none"
    return str(torch.cuda.get_device_name())


def busy_cores() -> float | None:
    """Return the number of cores in use while this process sleeps; None if unknown."""
    before = _cpu_seconds()
    time.sleep(WATCH_SECONDS)
    after = _cpu_seconds()
    if before is None or after is None:
        return None
    return (after - before) / WATCH_SECONDS


def _cpu_seconds() -> float | None:
    """Return the seconds that all cores together have been busy since the system started."""
    try:
        fields = Path("/proc/stat").read_text("utf-8").split("\n", 1)[0].split()[1:]
    except OSError:
        return None
    idle = int(fields[3]) + int(fields[4])  # idle, and waiting for disks
    return (sum(map(int, fields[:8])) - idle) / os.sysconf("SC_CLK_TCK")


class Others:
    """Measures the cores that other processes use, from its creation on.

    This process's children are no others, nor are theirs.
    """

    def __init__(self) -> None:
        self._begin = self._now()

    @staticmethod
    def _now() -> tuple[float | None, float, float]:
        own = time.process_time() + _childrens_seconds()
        return _cpu_seconds(), own, time.monotonic()

    def cores(self) -> float | None:
        """Return the mean number of cores that others used since then; None if unknown."""
        (all_before, own_before, begin), (all_after, own_after, end) = self._begin, self._now()
        if all_before is None or all_after is None:
            return None
        return max(0.0, (all_after - all_before - (own_after - own_before)) / (end - begin))


def _childrens_seconds() -> float:
    """Return the seconds that this process's children, and theirs, have computed."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        if fields := _stat(int(folder.name)):
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    ended = os.times()
    seconds = ended.children_user + ended.children_system
    living = list(children.get(os.getpid(), []))
    while living:
        process = living.pop()
        seconds += processor_seconds(process, with_ended=True)
        living += children.get(process, [])
    return seconds


def processor_seconds(process: int, with_ended: bool = False) -> float:
    """Return what a process has computed since it started; 0: this system does not say.

    Args:
        process: its number.
        with_ended: whether its children that have ended count.
    """
    times = _stat(process)[11 : 15 if with_ended else 13]
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


def _stat(process: int) -> list[str]:
    """Return what the system says of a process behind its name; nothing, if it has ended."""
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{process}/stat").read_text("utf-8", "replace")
        return stat.rpartition(")")[2].split()
    return []


def wait_until_idle() -> float | None:
    """Wait, at most ten seconds, for the machine to be idle; return the cores in use.

    Raises:
        UsageError: it stays busy.
    """
    busy = busy_cores()
    for _ in range(ATTEMPTS - 1):
        if busy is None or busy <= BUSY_CORES:
            return busy
        busy = busy_cores()
    refuse_busy(busy)
    return busy


def refuse_busy(busy: float | None) -> None:
    """Refuse a machine that other processes use too much.

    Raises:
        UsageError: they use more than ``BUSY_CORES`` cores.
    """
    if busy is not None and busy > BUSY_CORES:
        raise UsageError(
            f"the machine is busy: others use {busy:.1f} cores; allowed: at most {BUSY_CORES}; "
            "stop what runs there, or give --busy (the results will say so)"
        )


def with_peak_memory(work: Callable[[], T], device: str) -> tuple[T, float | None]:
    """Run ``work`` and measure its peak memory above the memory in use before.

    Args:
        work: the function.
        device: ``cpu``: the process's resident memory; ``cuda``: torch's allocations there.

    Returns:
        The result, and the peak in MiB; None if unknown.
    """
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        result = work()
        torch.cuda.synchronize()
        return result, round((torch.cuda.max_memory_allocated() - held) / MIB, 1)
    held_mib = _restart_peak()
    result = work()
    peak = peak_mib()
    if held_mib is None or peak is None:
        return result, None
    return result, round(max(0.0, peak - held_mib), 1)


def _restart_peak() -> float | None:
    """Release free memory, reset the peak, and return the memory in use in MiB (Linux)."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        give_back_memory()
        Path("/proc/self/clear_refs").write_text("5", "utf-8")
    except OSError:
        return None
    return _status("VmRSS")


def peak_mib() -> float | None:
    """Return this process's peak resident memory in MiB; None if unknown."""
    return _status("VmHWM")


def _status(name: str) -> float | None:
    """Return a figure of this process in MiB."""
    try:
        lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(name)), None)
