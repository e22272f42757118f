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
from ..methods.registry import METHODS
from . import arguments

# Every method that drafts by no trained model, together.
UNTRAINED = "jacobi"


def kinds() -> dict[str, list[str]]:
    """Return what may be measured: the methods of each ``--decoding`` of this command."""
    measured = [one for one in METHODS.values() if one.exact_variants is not None]
    untrained = [one.name for one in measured if one.drafter is None]
    return {UNTRAINED: untrained} | {one.name: [one.name] for one in measured if one.drafter}


def variants(
    joined: bool, kind: str = UNTRAINED, drafter: str | None = None, block: int = 0
) -> list[dict[str, Any]]:
    """List the settings of methods whose exactness is measured.

    Args:
        joined: source and target share a dictionary; ``source-copy`` needs that.
        kind: one of ``kinds``.
        drafter: what drafts, if that is not in the model.
        block: the block size that the drafter was trained with.
    """
    common = {} if drafter is None else {"drafter_path": drafter}
    return [
        {"decoding": name, **common, **options}
        for name, settings in ((name, METHODS[name].exact_variants) for name in kinds()[kind])
        for options in (settings(joined, block) if settings else [])
    ]


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
        "--decoding", choices=list(kinds()),
        help=f"whose variants; {UNTRAINED}: every decoder's that needs no drafter (default: "
        f"{UNTRAINED}; with --drafter-path, gad)",
    )  # fmt: skip
    add("--drafter-path", help="what drafts, if that is not in the model of --path")
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
    kind = args.decoding or (UNTRAINED if args.drafter_path is None else "gad")
    block = 0
    if kind == UNTRAINED and args.drafter_path is not None:
        drafted = " or ".join(name for name in kinds() if name != UNTRAINED)
        raise option_error("--drafter-path", args.drafter_path, f"it with {drafted}")
    if kind != UNTRAINED:
        if args.drafter_path is None and "drafter_path" in METHODS[kind].needs:
            raise option_error("--decoding", kind, "it with --drafter-path")
        trained = loading.generator(task, models, decoding=kind, drafter_path=args.drafter_path)
        block = trained.config.block_size
    ways = variants(joined, kind, args.drafter_path, block)
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
    if not joined and kind == UNTRAINED:
        notes.append("First guess source-copy: not run; source and target have a dictionary each.")
    what = "every decoder without a drafter" if kind == UNTRAINED else kind
    title = f"Lossless: {what} against fairseq greedy"
    documents.save(args.out, title, notes, rows, machine.circumstances("lossless", argv))
    return 0


if __name__ == "__main__":
    sys.exit(main())
