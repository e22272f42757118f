"""``profile launches``: what a pass launches, waits for, and takes on host and device."""

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from ...engine.chunk import ChunkScorer
from ..data.table import Table
from ..measure.rounds import now
from ..measure.systems import FairseqSystem
from .asked import Launches
from .harness import load

#: What the profiler calls events of CUDA, by the beginning of their names.
_LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch")
_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
_COPIES = ("cudaMemcpy",)

#: Times that a pass of fixed width is run, for its median.
REPETITIONS = 30
#: Tokens cached before such a pass.
CACHED = 10

#: Of a piece of work: launches, waits, copies, operators, and milliseconds of the device.
Counts = tuple[int, int, int, int, float]


def counted(work: Callable[[], Any], device: str) -> Counts:
    """Run under torch's profiler; return what was launched and how long the device worked."""
    kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device == "cuda")
    with profile(activities=kinds) as record:
        work()
        now(device)
    counts: Counter[str] = Counter()
    busy = 0.0
    for event in record.events() or ():
        if event.device_type == DeviceType.CUDA:
            busy += event.time_range.elapsed_us()
            continue
        counts["operators"] += event.name.startswith("aten::") and event.cpu_parent is None
        for kind, names in (("launches", _LAUNCHES), ("waits", _WAITS), ("copies", _COPIES)):
            counts[kind] += event.name.startswith(names)
    kinds_of = ("launches", "waits", "copies", "operators")
    launched, waits, copies, operators = (counts[kind] for kind in kinds_of)
    return launched, waits, copies, operators, busy / 1000


def row(
    what: str, batch: int, passes: float, seconds: float, counts: Counts, device: str
) -> dict[str, Any]:
    """Make a row: everything by the pass."""
    launched, waits, copies, operators, busy = (round(count / passes, 3) for count in counts)
    milliseconds = 1000 * seconds / passes
    on_device = device == "cuda"
    return {
        "what": what,
        "batch": batch,
        "passes": round(passes),
        "ms": round(milliseconds, 3),
        "device ms": busy if on_device else None,
        "device busy": round(busy / milliseconds, 3) if on_device else None,
        "launches": launched if on_device else None,
        "synchronisations": waits if on_device else None,
        "copies": copies if on_device else None,
        "operators": operators,
    }


def decoder_row(system: FairseqSystem, sentences: Sequence[int], size: int) -> dict[str, Any]:
    """Measure a decoder on batches of a size; a batch's passes are those of its longest row."""
    batches = [sentences[i : i + size] for i in range(0, len(sentences), size)]
    device, passes = system.device, 0

    def work() -> None:
        nonlocal passes
        outputs = [system.translate(batch) for batch in batches]
        passes = sum(max(output.passes or 0 for output in batch) for batch in outputs)

    work()
    begin = now(device)
    work()
    seconds = now(device) - begin
    return row(system.label, size, passes, seconds, counted(work, device), device)


def pass_rows(model: Any, source: dict[str, Any], width: int, device: str) -> list[dict[str, Any]]:
    """Measure torch's pass of a width as it is, and on CUDA in a graph."""
    scorer = ChunkScorer(model)
    scorer.encode(source)
    batch = source["src_tokens"].size(0)
    tokens = source["src_tokens"].new_full((batch, CACHED + width), model.decoder.padding_idx + 1)
    scorer.step(tokens)  # makes room
    scorer.keep([CACHED] * batch)
    chunk = tokens[:, :width].clone()

    def once() -> None:
        scorer.step(chunk)

    rows = [_pass_row(f"pass of {width}", batch, once, device)]
    if device == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):  # what a pass makes once is there by now
            once()
        rows.append(_pass_row(f"pass of {width}, CUDA graph", batch, graph.replay, device))
    return rows


def _pass_row(what: str, batch: int, once: Callable[[], Any], device: str) -> dict[str, Any]:
    """Measure one pass."""
    times = []
    for _ in range(REPETITIONS + 3):
        begin = now(device)
        once()
        times.append(now(device) - begin)
    return row(what, batch, 1, median(times[3:]), counted(once, device), device)


def measure(asked: Launches) -> Table:
    """Measure decoders and passes; return the table."""
    systems, sentences = load(asked)
    first = systems[0]
    sizes = [size for size in asked.batch_sizes if size <= len(sentences)]
    rows = [decoder_row(system, sentences, size) for size in sizes for system in systems]
    with torch.inference_mode():
        for size in sizes:
            source = first.sample(sentences[:size])["net_input"]
            for width in asked.chunks:
                rows += pass_rows(first.models[0], source, width, asked.device)
    notes = [
        f"{len(sentences)} sentences of {asked.data} ({asked.subset}), fp32, {asked.device}. All "
        "columns behind `passes` are by the pass; a decoder's have its encoder, drafts and "
        "everything else in them.",
        f"`pass of K`: the decoder alone, of K tokens behind {CACHED}, by torch; median of "
        f"{REPETITIONS}. In a CUDA graph it is launched at once.",
        "`device busy`: the device's time of all; where it is low, the host is what limits.",
    ]
    return Table.of(rows, notes=notes)
