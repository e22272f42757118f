"""``profile launches``: what a pass launches, waits for, and takes on host and device."""

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from ...engine.chunk import ChunkScorer
from ...engine.torch.decoder_pass import decoder_pass
from ..data.table import Cells, Table
from ..measure.rounds import now
from ..measure.systems import FairseqSystem
from .asked import Launches
from .harness import load

#: What is counted on a device, and the beginnings of the profiler's names for it.
COUNTED = {
    "launches": ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch"),
    "synchronisations": ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"),
    "copies": ("cudaMemcpy",),
}

#: Times that a pass of fixed width is run, for its median.
REPETITIONS = 30
#: Tokens cached before such a pass.
CACHED = 10


def row(
    what: str, batch: int, passes: float, seconds: float, work: Callable[[], Any], device: str
) -> Cells:
    """Make a row, everything by the pass: run under torch's profiler what took the seconds."""
    on_device = device == "cuda"
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA][: 1 + on_device]) as log:
        work()
        now(device)
    counts, busy = Counter[str](), 0.0
    for event in log.events() or ():
        if event.device_type == DeviceType.CUDA:
            busy += event.time_range.elapsed_us() / 1000
            continue
        counts["operators"] += event.name.startswith("aten::") and event.cpu_parent is None
        for name, beginnings in COUNTED.items():
            counts[name] += event.name.startswith(beginnings)
    milliseconds = 1000 * seconds / passes
    cells: Cells = {"what": what, "batch": batch, "passes": round(passes)}
    cells["ms"] = round(milliseconds, 3)
    cells["device ms"] = round(busy / passes, 3) if on_device else None
    cells["device busy"] = round(busy / passes / milliseconds, 3) if on_device else None
    for name in COUNTED:
        cells[name] = round(counts[name] / passes, 3) if on_device else None
    return cells | {"operators": round(counts["operators"] / passes, 3)}


def decoder_row(system: FairseqSystem, sentences: Sequence[int], size: int) -> Cells:
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
    return row(system.label, size, passes, seconds, work, device)


def pass_rows(model: Any, source: Tensor, width: int, device: str) -> list[Cells]:
    """Measure torch's pass of a width as it is, and on CUDA in a graph."""
    scorer = ChunkScorer(model)
    scorer.encode(source.numpy(force=True))
    batch = source.size(0)
    tokens = source.new_full((batch, CACHED + width), model.decoder.padding_idx + 1)
    decoder_pass(scorer.weights, scorer.cache, tokens)  # makes room
    scorer.keep([CACHED] * batch)
    chunk = tokens[:, :width].clone()

    def once() -> None:
        decoder_pass(scorer.weights, scorer.cache, chunk)

    rows = [_pass_row(f"pass of {width}", batch, once, device)]
    if device == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):  # what a pass makes once is there by now
            once()
        rows.append(_pass_row(f"pass of {width}, CUDA graph", batch, graph.replay, device))
    return rows


def _pass_row(what: str, batch: int, once: Callable[[], Any], device: str) -> Cells:
    """Measure one pass."""
    times = []
    for _ in range(REPETITIONS + 3):
        begin = now(device)
        once()
        times.append(now(device) - begin)
    return row(what, batch, 1, median(times[3:]), once, device)


def measure(asked: Launches) -> Table:
    """Measure decoders and passes; return the table."""
    systems, sentences = load(asked)
    first = systems[0]
    sizes = [size for size in asked.batch_sizes if size <= len(sentences)]
    rows = [decoder_row(system, sentences, size) for size in sizes for system in systems]
    with torch.inference_mode():
        for size in sizes:
            source = first.sample(sentences[:size])["net_input"]["src_tokens"]
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
