"""paradec-lossless: decode test sets by every Jacobi variant and compare with fairseq's --beam 1.

Exactness is counted, not timed: the command may run beside other work.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from ..decoding.audit import Audit
from ..decoding.config import CHOICES
from . import measure

BLOCK_SIZES = (3, 5, 8)


def variants() -> list[dict[str, Any]]:
    """List every method with every first guess, window, stop rule and block size measured."""
    found: list[dict[str, Any]] = [{"decoding": "greedy"}]
    for init in CHOICES["jacobi_init"]:
        whole = {"decoding": "pj", "jacobi_init": init}
        found += [whole, whole | {"jacobi_stop": "unchanged"}, whole | {"jacobi_length": "oracle"}]
        for size in BLOCK_SIZES:
            block = {"decoding": "pgj", "jacobi_init": init, "block_size": size}
            found += [block, block | {"jacobi_stop": "unchanged"}]
            found.append(block | {"decoding": "hgj", "jacobi_window": "sliding"})
        found.append(block | {"decoding": "hgj", "hybrid_length": 10})
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="paradec-lossless", description=__doc__)
    parser.add_argument("data", metavar="DATA", help="fairseq data folder")
    parser.add_argument("--path", required=True, help="checkpoint of a plain Transformer")
    parser.add_argument("--subsets", default="test", help="comma-separated (default: test)")
    parser.add_argument("--batch-sizes", default="1,64", help="comma-separated (default: 1,64)")
    parser.add_argument("--limit", type=int, help="sentences per subset (default: all)")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    models, task = measure.load(args.data, args.path)
    sizes = [int(size) for size in args.batch_sizes.split(",")]
    samples = {
        size: [
            sample
            for subset in args.subsets.split(",")
            for sample in measure.batches(task, subset, size, args.limit)
        ]
        for size in sizes
    }
    rows = []
    for size, options in tqdm([(s, o) for s in sizes for o in variants()], unit="variant"):
        rows.append(judge(task, models, samples[size], size, options))
    notes = [
        f"Subsets: {args.subsets}; fp32. Judge: fairseq's own SequenceGenerator, beam 1.",
        "A tie: the outputs part where the two tokens' log-probabilities are closer than 1e-4.",
        "Passes: mean decoder passes per sentence; greedy's own count is its tokens.",
    ]
    measure.save(args.out, "Lossless: every Jacobi variant against fairseq greedy", notes, rows)


_judged: dict[int, list[list[dict[str, Any]]]] = {}


def judge(
    task: Any,
    models: Sequence[Any],
    samples: Sequence[dict[str, Any]],
    batch_size: int,
    options: dict[str, Any],
) -> dict[str, Any]:
    """Decode all samples by one variant and compare with fairseq's outputs.

    Returns:
        One row of the table.
    """
    generator = measure.generator(task, models, **options)
    audit = Audit(list(models), task.target_dictionary)
    if batch_size not in _judged:
        _judged[batch_size] = [audit.judge.generate(models, sample) for sample in samples]
    passes = 0
    for sample, wanted in zip(samples, _judged[batch_size], strict=True):
        hypos = task.inference_step(generator, models, sample)
        passes += sum(hypo[0]["steps"] for hypo in hypos)
        audit.compare_with(sample, hypos, wanted)
    return {
        "batch size": batch_size,
        "decoder": options["decoding"],
        "block": options.get("block_size", ""),
        "window": options.get("jacobi_window", "block" if "block_size" in options else ""),
        "first guess": options.get("jacobi_init", ""),
        "other": " ".join(
            f"{name.split('_')[1]}={options[name]}"
            for name in ("jacobi_length", "jacobi_stop", "hybrid_length")
            if name in options
        ),
        "sentences": audit.sentences,
        "identical": audit.identical,
        "ties": audit.ties,
        "beyond ties": audit.sentences - audit.identical - audit.ties,
        "passes": round(passes / audit.sentences, 3),
    }


if __name__ == "__main__":
    main()
