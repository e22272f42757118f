"""Trainee: a new model that makes updates one by one, to measure what they take."""

import time
from collections.abc import Sequence
from typing import Any

import torch
from fairseq import options, tasks, utils

CRITERION = ["--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"]


class Trainee:
    """A new model with its task, criterion and optimizer."""

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
        first = [batch for batch, _ in zip(made, range(count), strict=False)]
        return self.placed(first)

    def placed(self, samples: Any) -> Any:
        """Return batches on the device."""
        return utils.move_to_cuda(samples) if self.device == "cuda" else samples

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
        """Return the time in seconds, after all work on the device is done."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


class _Backward:
    """The part of an optimizer that fairseq's tasks call: a backward pass."""

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()
