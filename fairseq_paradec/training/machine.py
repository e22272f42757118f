"""What a run should know of the machine: devices, bfloat16, and the child's environment."""

import os
import sys
import time

#: Large blocks come from the heap, which is kept: a fresh page costs as much as a small product.
#: The plugin's tasks ask malloc for it themselves (memory.py); this is for all tasks, from
#: the start of the process on.
ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1)}

#: From so many times the speed of fp32 on products in bfloat16 pay; converting costs the rest.
PAYS = 1.3


def environment(threads: int, keeps: bool) -> dict[str, str]:
    """Return the environment of fairseq-train: the user's wins, but for the threads.

    Args:
        threads: of each process.
        keeps: the process keeps its memory; not so with ``--fairseq-updates``.
    """
    # Threads that spin while they wait slow each other down sixfold where cores are shared.
    ours = {"OMP_WAIT_POLICY": "passive"}
    if keeps and sys.platform == "linux":
        ours |= ALLOCATOR
    return ours | dict(os.environ) | {"OMP_NUM_THREADS": str(threads)}


def processors() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores() -> int:
    """Return how many cores threads may take: ``OMP_NUM_THREADS`` limits them, as for nproc."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(processors(), int(limit)) if limit.isdecimal() and int(limit) else processors()


def gpus() -> int:
    """Return the number of CUDA devices."""
    import torch

    return torch.cuda.device_count()


def bfloat16_pays(threads: int) -> tuple[bool, float]:
    """Measure products of a small model's size: is bfloat16 faster on this CPU, and how many times?

    It takes a fraction of a second.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        ratio = _seconds(torch.float32) / _seconds(torch.bfloat16)
    finally:
        torch.set_num_threads(before)
    return ratio >= PAYS, ratio


def _seconds(dtype: object) -> float:
    """Return the shortest of some times of a product; one of a slow kind is enough."""
    import torch

    a, b = torch.ones(256, 256, dtype=dtype), torch.ones(256, 512, dtype=dtype)  # type: ignore[call-overload]
    times: list[float] = []
    while len(times) < 20 and sum(times) < 0.1:
        begin = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - begin)
    return min(times)
