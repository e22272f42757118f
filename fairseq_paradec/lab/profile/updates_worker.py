"""Makes updates on request, by the checkout on PYTHONPATH; for ``profile training-speed``.

This file runs by its path and imports nothing beside it, so that it can drive an older checkout. It
reads the number of a batch from each line, makes fairseq's own update on it, and writes one line of
JSON: seconds by the clock and of CPU time.
"""

import importlib
import json
import os
import sys
import time
from typing import Any


def trainer_and_batches(flags: list[str], count: int) -> tuple[Any, list[Any]]:
    """Build fairseq's Trainer, and the first batches of its first epoch."""
    import torch
    from fairseq import options, tasks
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.trainer import Trainer

    parser = options.get_training_parser()
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, flags))
    torch.manual_seed(cfg.common.seed)
    task = tasks.setup_task(cfg.task)
    model, criterion = task.build_model(cfg.model), task.build_criterion(cfg.criterion)
    task.load_dataset("train")
    trainer = Trainer(cfg, task, model, criterion)
    batches = trainer.get_train_iterator(1).next_epoch_itr(shuffle=True)
    return trainer, [batch for batch, _ in zip(batches, range(count), strict=False)]


def main() -> None:
    """Announce the worker; then make updates until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # fairseq prints
    asked = json.loads(sys.argv[1])
    plugin = importlib.import_module("fairseq_paradec")  # that of PYTHONPATH, not the one here
    import torch

    torch.set_num_threads(asked["threads"])
    trainer, batches = trainer_and_batches(asked["flags"], asked["batches"])
    hello = {
        "package": os.path.dirname(os.path.abspath(str(plugin.__file__))),
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "batches": len(batches),
        "tokens": sum(batch["ntokens"] for batch in batches),
    }
    answers.write(json.dumps(hello) + "\n")
    for line in sys.stdin:
        clock, cpu = time.perf_counter(), time.process_time()
        trainer.train_step([batches[int(line)]])
        spent = [time.perf_counter() - clock, time.process_time() - cpu]
        answers.write(json.dumps(spent) + "\n")


if __name__ == "__main__":
    main()
