"""paradec-engine: how fast the lean scorer is against fairseq's decoder, both greedy.

The same tokens are made by fairseq's --beam 1 and by --decoding greedy, so the engines alone are
compared and no algorithm. Sentences are interleaved: each is decoded by both, in turn first.
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
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.models.transformer import TransformerModel
from tqdm import tqdm

from ..errors import option_error
from . import measure

# The lengths of an untrained model's outputs mean nothing: all are given this one, with </s>.
UNTRAINED_LENGTH = 14


def untrained(task: Any, arch: str) -> Any:
    """Build a model of a named architecture with random weights; time does not depend on them.

    Raises:
        UsageError: the name is not one of a plain Transformer.
    """
    plain = [name for name, model in ARCH_MODEL_REGISTRY.items() if model is TransformerModel]
    if arch not in plain:
        raise option_error("--arch", arch, ", ".join(sorted(plain)))
    args = argparse.Namespace(share_all_embeddings=task.source_dictionary == task.target_dictionary)
    ARCH_CONFIG_REGISTRY[arch](args)
    torch.manual_seed(1)
    model = TransformerModel.build_model(args, task)
    model.eval()
    model.make_generation_fast_()
    return model


def compare(
    task: Any,
    models: Sequence[Any],
    samples: Sequence[dict[str, Any]],
    rounds: int,
    limits: dict[str, Any],
    name: str,
) -> dict[str, Any]:
    """Time both engines on the same sentences.

    Returns:
        One row of the table; times are per sentence, encoder included.
    """
    engines = {
        "fairseq": measure.generator(task, models, beam=1, decoding="beam", **limits),
        "ours": measure.generator(task, models, decoding="greedy", **limits),
    }
    seconds: dict[str, list[list[float]]] = {engine: [] for engine in engines}
    tokens, same = 0, 0
    for sample in samples:  # untimed: warm-up and comparison
        outputs = [
            task.inference_step(generator, models, sample)[0][0]["tokens"]
            for generator in engines.values()
        ]
        tokens += outputs[1].numel()
        same += torch.equal(*outputs)
    for turn in tqdm(range(rounds), desc=name, unit="round"):
        for times in seconds.values():
            times.append([])
        for number, sample in enumerate(samples):
            order = list(engines)
            if (turn + number) % 2:
                order.reverse()
            for engine in order:
                begin = time.perf_counter()
                task.inference_step(engines[engine], models, sample)
                seconds[engine][-1].append(time.perf_counter() - begin)
    medians = {e: [1000 * statistics.median(t) for t in times] for e, times in seconds.items()}
    ratios = [a / b for a, b in zip(medians["fairseq"], medians["ours"], strict=True)]
    return {
        "model": name,
        "sentences": len(samples),
        "tokens per sentence": round(tokens / len(samples), 2),
        "identical": f"{same}/{len(samples)}",
        "fairseq --beam 1, ms": round(statistics.median(medians["fairseq"]), 2),
        "greedy, ms": round(statistics.median(medians["ours"]), 2),
        "speed-up": round(statistics.median(ratios), 2),
        "spread over rounds": f"{min(ratios):.2f}-{max(ratios):.2f}",
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Console entry point; returns the exit status."""
    parser = argparse.ArgumentParser(prog="paradec-engine", description=__doc__)
    add, number = parser.add_argument, measure.whole_number
    add("data", metavar="DATA", help="fairseq data folder with a `test` subset")
    add("--path", required=True, help="checkpoint of a plain Transformer")
    add("--arch", default="transformer", help="timed with random weights, too")
    add("--sentences", type=number, default=100, help="how many (default: 100)")
    add("--rounds", type=number, default=5, help="timed rounds (default: 5)")
    add("--threads", type=number, default=2, help="CPU threads (default: 2)")
    add("--out", type=Path, required=True, help="JSON file to write")
    args = parser.parse_args(argv)
    return measure.run("paradec-engine", lambda: _run(args, argv))


def _run(args: argparse.Namespace, argv: Sequence[str] | None) -> int:
    """Time the checkpoint and the untrained model, and write the table."""
    torch.set_num_threads(args.threads)
    models, task = measure.load(args.data, args.path)
    random = [untrained(task, args.arch)]
    samples = list(measure.batches(task, "test", 1, args.sentences))
    fixed = {"min_len": UNTRAINED_LENGTH - 1, "max_len_b": UNTRAINED_LENGTH - 1}
    own, other = Path(args.path).resolve().parent.name, f"{args.arch}, random weights"
    rows = [
        compare(task, models, samples, args.rounds, {}, own),
        compare(task, random, samples, args.rounds, fixed, other),
    ]
    notes = [
        f"Batch 1, fp32, CPU, {args.threads} thread(s), encoder included; each number is the median"
        " over the rounds of the median over the sentences.",
        "With random weights every output has the same number of tokens, set by the limits.",
    ]
    title = "Engine: greedy search on the lean scorer and in fairseq"
    measure.save(args.out, title, notes, rows, measure.circumstances("engine", argv))
    return 0


if __name__ == "__main__":
    sys.exit(main())
