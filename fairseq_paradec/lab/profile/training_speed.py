"""``profile training-speed``: the training speed of each architecture, relative to the first."""

import statistics

import torch

from ...engine.settings import usable_device
from ...training.trainee import Trainee
from ..data.journal import Journal
from ..data.table import Cells, Table, column
from ..measure import rounds
from .asked import Training
from .harness import in_rounds, speed_up


def measure(asked: Training, journal: Journal) -> Table:
    """Train all architectures in alternation; return the table."""
    usable_device(asked.device)
    torch.set_num_threads(asked.threads)
    trainees = [Trainee(asked.data, arch, asked.flags, asked.device) for arch in asked.arch]
    batches = trainees[0].batches(asked.max_tokens, asked.batches)
    tokens = sum(batch["ntokens"] for batch in batches)
    rounds.in_turns(trainees, batches, 0, Trainee.update)  # warms up
    seconds, others = in_rounds(asked, journal, "updates", trainees, batches, Trainee.update)
    relative = column("speed_of_first", f"speed of {asked.arch[0]}'s", form=".3f")
    rows: list[Cells] = [
        {
            "architecture": trainee.arch,
            "parameters": sum(p.numel() for p in trainee.model.parameters()),
            "tokens_per_second": round(tokens / statistics.median(map(sum, own))),
            relative: speed_up(seconds[0], own),
        }
        for trainee, own in zip(trainees, seconds, strict=True)
    ]
    notes = [
        f"{len(batches)} batches of at most {asked.max_tokens} tokens, {asked.rounds} rounds after "
        f"a warm-up, architectures in turns; fp32, {asked.device}, {asked.threads} thread(s); "
        f"{others}.",
        "Forward, backward and Adam; target tokens, </s> counted once for all. The speeds are "
        "medians of the rounds' ratios (lowest-highest).",
    ]
    return Table.of(rows, notes=notes)
