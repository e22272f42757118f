"""``paradec training-speed``: the training speed of each architecture, relative to the first."""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...engine.settings import usable_device
from ...training.trainee import Trainee
from ..data import documents
from ..data.samples import series, speed_ups
from ..data.table import Cells, Table, column
from ..settings import Made, Timing
from . import rounds


@dataclass(frozen=True)
class Settings(Made, Timing):
    """Of ``paradec training-speed``."""

    data: str  # fairseq's data folder
    arch: Sequence[str]  # architectures; with ``before``, flags may follow each
    flags: Sequence[str]  # of fairseq-train, for all of them
    before: str | None  # an older checkout; None: architectures are compared
    max_tokens: int  # of a batch
    batches: int  # how many
    device: str  # ``cpu`` or ``cuda``


def training_speed(args: Settings) -> int:
    """Train all architectures in alternation, and write the table; return the exit status."""
    usable_device(args.device)
    torch.set_num_threads(args.threads)
    trainees = [Trainee(args.data, arch, args.flags, args.device) for arch in args.arch]
    batches = trainees[0].batches(args.max_tokens, args.batches)
    tokens = sum(batch["ntokens"] for batch in batches)
    rounds.in_turns(trainees, batches, 0, Trainee.update)  # warms up
    found, used = rounds.all_rounds(
        trainees, batches, args.rounds, args.busy, Trainee.update, "updates"
    )
    seconds = list(zip(*found, strict=True))  # by architecture, round and batch
    numbered = [series(str(i), own) for i, own in enumerate(seconds)]  # some may have one name
    gains = speed_ups(itertools.chain(*numbered), "0")
    relative = column("speed_of_first", f"speed of {args.arch[0]}'s", form=".3f")
    rows: list[Cells] = []
    for i, (trainee, own) in enumerate(zip(trainees, seconds, strict=True)):
        rows.append(
            {
                "architecture": trainee.arch,
                "parameters": sum(p.numel() for p in trainee.model.parameters()),
                "tokens_per_second": round(tokens / statistics.median(map(sum, own))),
                relative: gains[str(i), None],
            }
        )
    notes = [
        f"{len(batches)} batches of at most {args.max_tokens} tokens, {args.rounds} rounds after a "
        f"warm-up, architectures in turns; fp32, {args.device}, {args.threads} thread(s); "
        f"{rounds.others_used(used, args.busy)}.",
        "Forward, backward and Adam; target tokens, </s> counted once for all. The speeds are "
        "medians of the rounds' ratios (lowest-highest).",
    ]
    documents.save_made(args, Table.of(rows, notes=notes))
    return 0
