"""paradec-lossless: decode test sets by every lossless variant and compare with fairseq's --beam 1.

Exactness is counted, not timed: the command may run beside other work.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from ..decoding.audit import Audit
from ..errors import option_error
from ..measure import documents, loading, machine
from ..options import CHOICES
from . import arguments

BLOCK_SIZES = (3, 5, 8)
GAD_BLOCK_SIZES = (1, 3, 5, 8, 12, 25)


# What may be measured, and how a title calls it.
KINDS = {"jacobi": "every Jacobi variant", "gad": "GAD", "blockwise": "blockwise decoding"}


def variants(
    joined: bool, drafter: str | None = None, blocks: int | None = None
) -> list[dict[str, Any]]:
    """List every method with every first guess, window, stop rule and block size measured.

    Args:
        joined: source and target share a dictionary; ``source-copy`` needs that.
        drafter: ``gad``'s; with it, that method's variants alone. Or the heads of ``blockwise``,
            if they are not in the model.
        blocks: the block size of ``blockwise`` heads; with it, that method's variants alone.
    """
    if blocks is not None:
        heads: dict[str, Any] = {} if drafter is None else {"drafter_path": drafter}
        sizes = range(1, blocks + 1)
        return [{"decoding": "blockwise", **heads, "block_size": size} for size in sizes]
    if drafter is not None:
        gad = {"decoding": "gad", "drafter_path": drafter}
        return [gad | {"block_size": size} for size in GAD_BLOCK_SIZES]
    found: list[dict[str, Any]] = [{"decoding": "greedy"}]
    for init in CHOICES["jacobi_init"]:
        if init == "source-copy" and not joined:
            continue
        whole = {"decoding": "pj", "jacobi_init": init}
        found += [whole, whole | {"jacobi_stop": "unchanged"}, whole | {"jacobi_length": "oracle"}]
        for size in BLOCK_SIZES:
            block = {"decoding": "pgj", "jacobi_init": init, "block_size": size}
            found += [block, block | {"jacobi_stop": "unchanged"}]
            found.append(block | {"decoding": "hgj", "jacobi_window": "sliding"})
        found.append(block | {"decoding": "hgj", "hybrid_length": 10})
    return found


def judge(
    task: Any,
    models: Sequence[Any],
    samples: Sequence[dict[str, Any]],
    wanted: Sequence[list[list[dict[str, Any]]]],
    options: dict[str, Any],
) -> dict[str, Any]:
    """Decode all samples by one variant and compare with fairseq's outputs.

    Args:
        task: with the dictionaries.
        models: the model, or an ensemble.
        samples: the batches.
        wanted: for each, what fairseq's search gave.
        options: the variant.

    Returns:
        The counts of one row of the table.
    """
    generator = loading.generator(task, models, **options)
    audit = Audit(list(models), task.target_dictionary)
    passes = 0
    for sample, theirs in zip(samples, wanted, strict=True):
        hypos = task.inference_step(generator, models, sample)
        passes += sum(hypo[0]["steps"] for hypo in hypos)
        with torch.no_grad():
            audit.compare_with(sample, hypos, theirs)
    return {
        "sentences": audit.sentences,
        "identical": audit.identical,
        "ties": audit.ties,
        "beyond ties": audit.sentences - audit.identical - audit.ties,
        "passes": round(passes / audit.sentences, 3),
    }


def labels(batch_size: int, options: dict[str, Any]) -> dict[str, Any]:
    """Return the columns that say which variant a row is about."""
    return {
        "batch size": batch_size,
        "decoder": options["decoding"],
        "block": options.get("block_size", ""),
        "window": options.get("jacobi_window", "block" if "block_size" in options else ""),
        "first guess": options.get("jacobi_init", ""),
        "other": " ".join(
            f"{name.removeprefix('jacobi_')}={options[name]}"
            for name in ("jacobi_length", "jacobi_stop", "hybrid_length")
            if name in options
        ),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Console entry point; returns the exit status."""
    parser = argparse.ArgumentParser(prog="paradec-lossless", description=__doc__)
    add = parser.add_argument
    add("data", metavar="DATA", help="fairseq data folder")
    add("--path", required=True, help="checkpoint of a Transformer, with heads or without")
    add(
        "--decoding", choices=list(KINDS),
        help="whose variants: every Jacobi decoder's, gad's, or blockwise with all block sizes "
        "(default: jacobi; with --drafter-path, gad)",
    )  # fmt: skip
    add("--drafter-path", help="gad's drafter; or heads for blockwise, if --path has none")
    add("--subsets", default="test", help="comma-separated (default: test)")
    add("--batch-sizes", type=arguments.whole_numbers, default=[1, 64], help="(default: 1,64)")
    add("--limit", type=arguments.whole_number, help="sentences per subset (default: all)")
    add("--out", type=Path, required=True, help="JSON file to write")
    args = parser.parse_args(argv)
    return arguments.run("paradec-lossless", lambda: _run(args, argv))


def _run(args: argparse.Namespace, argv: Sequence[str] | None) -> int:
    """Decode everything by everything, and write the table."""
    torch.set_num_threads(1)
    models, task = loading.load(args.data, args.path)
    joined = task.source_dictionary == task.target_dictionary
    search = loading.generator(task, models, decoding="beam", beam=1)
    rows = []
    kind = args.decoding or ("jacobi" if args.drafter_path is None else "gad")
    if kind == "jacobi" and args.drafter_path is not None:
        raise option_error("--drafter-path", args.drafter_path, "it with gad or blockwise")
    if kind == "gad" and args.drafter_path is None:
        raise option_error("--decoding", kind, "it with --drafter-path")
    blocks = None
    if kind == "blockwise":
        trained = loading.generator(
            task, models, decoding="blockwise", drafter_path=args.drafter_path
        )
        blocks = trained.config.block_size
    ways = variants(joined, args.drafter_path, blocks)
    with tqdm(total=len(args.batch_sizes) * len(ways), unit="variant") as progress:
        for size in args.batch_sizes:
            samples = [
                sample
                for subset in args.subsets.split(",")
                for sample in loading.batches(task, subset, size, args.limit)
            ]
            wanted = [search.generate(models, sample) for sample in samples]
            for options in ways:
                counts = judge(task, models, samples, wanted, options)
                rows.append(labels(size, options) | counts)
                progress.update()
    notes = [
        f"Subsets: {args.subsets}; fp32. Judge: fairseq's own SequenceGenerator, beam 1.",
        "A tie: the outputs part where the two tokens' log-probabilities are closer than 1e-4.",
        "Passes: mean decoder passes per sentence; greedy's own count is its tokens.",
    ]
    if not joined and kind == "jacobi":
        notes.append("First guess source-copy: not run; source and target have a dictionary each.")
    title = f"Lossless: {KINDS[kind]} against fairseq greedy"
    documents.save(args.out, title, notes, rows, machine.circumstances("lossless", argv))
    return 0


if __name__ == "__main__":
    sys.exit(main())
