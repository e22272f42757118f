"""paradec-engine: how fast the lean scorer is against fairseq's decoder, both greedy.

The same tokens are made by fairseq's --beam 1 and by --decoding greedy, so the engines alone are
compared and no algorithm. Sentences are interleaved: each is decoded by both, in turn first.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from tqdm import tqdm

from . import measure

# The lengths of an untrained model's outputs mean nothing: all are given this one, with </s>.
UNTRAINED_LENGTH = 14


def untrained(task: Any, arch: str) -> Any:
    """Build a model of a named architecture with random weights; time does not depend on them."""
    args = argparse.Namespace(share_all_embeddings=task.source_dictionary == task.target_dictionary)
    ARCH_CONFIG_REGISTRY[arch](args)
    torch.manual_seed(1)
    model = ARCH_MODEL_REGISTRY[arch].build_model(args, task)
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


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="paradec-engine", description=__doc__)
    parser.add_argument("data", metavar="DATA", help="fairseq data folder with a `test` subset")
    parser.add_argument("--path", required=True, help="checkpoint of a plain Transformer")
    parser.add_argument("--arch", default="transformer", help="timed with random weights, too")
    parser.add_argument("--sentences", type=int, default=100, help="how many (default: 100)")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds (default: 5)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default: 2)")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    models, task = measure.load(args.data, args.path)
    everything = list(measure.batches(task, "test", 1, None))
    samples = everything[:: max(1, len(everything) // args.sentences)][: args.sentences]
    fixed = {"min_len": UNTRAINED_LENGTH - 1, "max_len_b": UNTRAINED_LENGTH - 1}
    rows = [
        compare(task, models, samples, args.rounds, {}, Path(args.path).parent.name),
        compare(
            task,
            [untrained(task, args.arch)],
            samples,
            args.rounds,
            fixed,
            f"{args.arch}, random weights",
        ),
    ]
    notes = [
        f"Batch 1, fp32, CPU, {args.threads} thread(s), encoder included; each number is the median"
        " over the rounds of the median over the sentences.",
        "With random weights every output has the same number of tokens, set by the limits.",
    ]
    measure.save(args.out, "Engine: greedy search on the lean scorer and in fairseq", notes, rows)


if __name__ == "__main__":
    main()
