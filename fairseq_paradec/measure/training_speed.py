"""``paradec training-speed``: the training speed of each architecture, relative to the first.

All architectures make updates on the same batches, in alternation: forward, backward and Adam, with
fairseq's own task and label-smoothed criterion (zhang2020, Table 1, column Train).
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

import torch
from fairseq import options, tasks, utils

from . import documents, rounds

CRITERION = ["--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"]


class Trainee:
    """A new model with its task, criterion and optimizer.

    Args:
        data: fairseq's data folder.
        arch: an architecture.
        flags: of fairseq-train, for all.
        device: ``cpu`` or ``cuda``.
    """

    def __init__(self, data: str, arch: str, flags: Sequence[str], device: str) -> None:
        parser = options.get_training_parser()
        given = [data, "--arch", arch, *CRITERION, *flags]
        args = options.parse_args_and_arch(parser, given, suppress_defaults=False)
        torch.manual_seed(args.seed)
        self.arch, self.device = arch, device
        self.task = tasks.setup_task(args)
        self.model = self.task.build_model(args).to(device).train()
        self.criterion = self.task.build_criterion(args).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)
        self.updates = 0

    def batches(self, max_tokens: int, count: int) -> list[dict[str, Any]]:
        """Return the first batches of training, on the device."""
        self.task.load_dataset("train")
        made = self.task.get_batch_iterator(
            self.task.dataset("train"), max_tokens=max_tokens, seed=1
        ).next_epoch_itr(shuffle=True)
        found = [batch for batch, _ in zip(made, range(count), strict=False)]
        return self.placed(found)

    def placed(self, samples: Any) -> Any:
        """Return batches on the device."""
        return utils.move_to_cuda(samples) if self.device == "cuda" else samples

    def update(self, sample: dict[str, Any]) -> float:
        """Make one update; return its seconds."""
        begin = rounds.now(self.device)
        loss, size, _ = self.task.train_step(
            sample, self.model, self.criterion, _Backward(), self.updates
        )
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad /= size
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.updates += 1
        return rounds.now(self.device) - begin


class _Backward:
    """The part of an optimizer that fairseq's tasks call: a backward pass."""

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()


def training_speed(args: argparse.Namespace) -> int:
    """Train all architectures in alternation, and write the table; return the exit status.

    Args:
        args: of ``paradec training-speed``; ``flags`` are those of fairseq-train.
    """
    rounds.check_device(args.device)
    torch.set_num_threads(args.threads)
    trainees = [Trainee(args.data, arch, args.flags, args.device) for arch in args.arch]
    batches = trainees[0].batches(args.max_tokens, args.batches)
    tokens = sum(batch["ntokens"] for batch in batches)
    rounds.in_turns(trainees, batches, 0, Trainee.update)  # warms up
    found, used = rounds.all_rounds(
        trainees, batches, args.rounds, args.busy, Trainee.update, "updates"
    )
    seconds = [[sum(each) for each in own] for own in zip(*found, strict=True)]
    rows = []
    for trainee, own in zip(trainees, seconds, strict=True):
        ratios = [first / second for first, second in zip(seconds[0], own, strict=True)]
        rows.append(
            {
                "architecture": trainee.arch,
                "parameters": sum(p.numel() for p in trainee.model.parameters()),
                "tokens per second": round(tokens / statistics.median(own)),
                f"speed of {args.arch[0]}'s": round(statistics.median(ratios), 3),
                "lowest round": round(min(ratios), 3),
                "highest round": round(max(ratios), 3),
            }
        )
    notes = [
        f"{len(batches)} batches of at most {args.max_tokens} tokens, {args.rounds} rounds after a "
        f"warm-up, architectures in turns; fp32, {args.device}, {args.threads} thread(s); "
        f"{rounds.others_used(used, args.busy)}.",
        "Forward, backward and Adam; target tokens, </s> counted once for all. The speeds are "
        "medians of the rounds' ratios.",
    ]
    documents.save_made(args, "training-speed", notes, rows)
    return 0
