"""paradec-training-speed: how fast each architecture trains, against the first one.

Every architecture makes updates on the same batches, in turns: forward, backward and Adam, by
fairseq's own task and label-smoothed criterion. (zhang2020, Table 1, column Train.)
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq import options, tasks, utils
from tqdm import tqdm

from ..measure import documents, machine
from . import arguments

CRITERION = ["--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"]


class Trainee:
    """A new model with all that an update needs.

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
        return utils.move_to_cuda(found) if self.device == "cuda" else found

    def update(self, sample: dict[str, Any]) -> float:
        """Make one update; return its seconds."""
        begin = self._now()
        loss, size, _ = self.task.train_step(
            sample, self.model, self.criterion, _Backward(), self.updates
        )
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad /= size
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.updates += 1
        return self._now() - begin

    def _now(self) -> float:
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


class _Backward:
    """What fairseq's tasks want of an optimizer: a backward pass."""

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()


def main(argv: Sequence[str] | None = None) -> int:
    """Console entry point; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="paradec-training-speed",
        description=__doc__,
        epilog="After -- come more flags of fairseq-train, for all architectures.",
    )
    add, number = parser.add_argument, arguments.whole_number
    add("data", metavar="DATA", help="fairseq data folder with a training part")
    add(
        "--arch", action="append", required=True, metavar="NAME",
        help="an architecture; may be repeated; the first one is what others are compared with",
    )  # fmt: skip
    add("--max-tokens", type=number, default=4096, help="of a batch (default: 4096)")
    add("--batches", type=number, default=10, help="different ones (default: 10)")
    add("--rounds", type=number, default=5, help="over the batches (default: 5)")
    add("--threads", type=number, default=1, help="CPU threads (default: 1)")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="(default: cpu)")
    add("--busy", action="store_true", help="measure though others use the machine; it is noted")
    add("--title", default="Training speed", help="of the table")
    add("--out", type=Path, required=True, help="JSON file to write")
    given = list(sys.argv[1:] if argv is None else argv)
    end = given.index("--") if "--" in given else len(given)
    args = parser.parse_args(given[:end])
    return arguments.run("paradec-training-speed", lambda: _run(args, given, given[end + 1 :]))


def _run(args: argparse.Namespace, argv: Sequence[str], flags: Sequence[str]) -> int:
    """Train all in turns, and write the table."""
    torch.set_num_threads(args.threads)
    busy = None if args.busy else machine.wait_until_idle()
    trainees = [Trainee(args.data, arch, flags, args.device) for arch in args.arch]
    batches = trainees[0].batches(args.max_tokens, args.batches)
    tokens = sum(batch["ntokens"] for batch in batches)
    rounds: list[list[float]] = [[] for _ in trainees]
    with tqdm(total=(args.rounds + 1) * len(batches) * len(trainees), unit=" updates") as bar:
        for turn in range(args.rounds + 1):  # the first one warms up
            seconds = [0.0] * len(trainees)
            for sample in batches:
                for i, trainee in enumerate(trainees):
                    seconds[i] += trainee.update(sample)
                    bar.update()
            if turn:
                for found, second in zip(rounds, seconds, strict=True):
                    found.append(second)
    rows = []
    for trainee, own in zip(trainees, rounds, strict=True):
        ratios = [first / second for first, second in zip(rounds[0], own, strict=True)]
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
    idle = "not checked (--busy)" if busy is None else f"{busy:.2f} cores in use before"
    notes = [
        f"{len(batches)} batches of at most {args.max_tokens} tokens, {args.rounds} rounds after a "
        f"warm-up, architectures in turns; fp32, {args.device}, {args.threads} thread(s); others: "
        f"{idle}.",
        "Forward, backward and Adam; target tokens, </s> counted once for all. The speeds are "
        "medians of the rounds' ratios.",
    ]
    documents.save(args.out, args.title, notes, rows, machine.circumstances("training_speed", argv))
    return 0


if __name__ == "__main__":
    sys.exit(main())
