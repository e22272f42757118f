"""``paradec lossless``: every lossless setting's outputs against fairseq's --beam 1."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from ...errors import needs
from ...plugin.tasks.loading import check_inputs
from ...registry import METHODS
from ..data import documents
from ..data.table import Cells, Table, column
from ..settings import Made
from .exactness import UNTRAINED, kinds, variants
from .judge import agreement
from .loading import choose
from .specs import Spec
from .systems import FairseqSystem, Models, decode

# What promised the outputs and made them; pages show the engine alone.
HIDDEN = {name: column(name, hidden=True) for name in ("lossless", "model", "drafter")}
# Options that have columns of their own, or are the same in all rows.
OWN_COLUMNS = ("decoding", "drafter_path", "block_size", "jacobi_window", "jacobi_init")


@dataclass(frozen=True)
class Settings:
    """Of ``paradec lossless``."""

    data: str  # fairseq's data folder
    path: str  # the checkpoint
    decoding: str | None  # whose variants are compared; None: those that fit ``drafter_path``
    drafter_path: str | None  # a drafter or heads; None: none, or the model has them
    # n-best lists of these are compared with fairseq's; none: greedy outputs are
    beams: Sequence[int]
    engines: Sequence[str]  # of ``beams``: what computes the passes
    subsets: Sequence[str]  # of the data
    batch_sizes: Sequence[int]  # sentences
    limit: int | None  # sentences of a subset; None: all
    argv: Sequence[str]  # the words after ``paradec``
    out: Path  # the JSON file to write


def count(
    systems: Mapping[str, FairseqSystem],
    sentences: Mapping[str, Sequence[int]],
    wanted: Mapping[str, Sequence[list[str]]],
    size: int,
) -> Cells:
    """Decode all subsets with one setting, and compare with fairseq's outputs.

    Returns:
        The counts of one row of the table.
    """
    counts = dict.fromkeys(("sentences", "identical", "ties", "beyond ties"), 0)
    passes = 0
    for subset, system in systems.items():
        outputs = decode(system, sentences[subset], size, lambda _: None)
        tokens = [output.tokens for output in outputs]
        found = agreement(system, sentences[subset], tokens, wanted[subset])
        counts = {name: counts[name] + found[name] for name in counts}
        passes += sum(output.passes or 0 for output in outputs)
    row: Cells = {name.replace(" ", "_"): number for name, number in counts.items()}
    return row | {"passes": round(passes / counts["sentences"], 3)}


def labels(batch_size: int, options: dict[str, Any]) -> Cells:
    """Return the columns that identify a row's setting."""
    others = [
        f"{name.removeprefix('jacobi_')}={value}"
        for name, value in options.items()
        if name not in OWN_COLUMNS
    ]
    return {
        "batch_size": batch_size,
        "decoder": options["decoding"],
        "block": options.get("block_size"),
        "window": options.get("jacobi_window", "block" if "block_size" in options else None),
        "first_guess": options.get("jacobi_init"),
        "other": " ".join(others) or None,
    }


def made_by(provenance: Mapping[str, Any]) -> Cells:
    """Return the columns of what made a row's outputs."""
    engine = column("engine", "engine")
    return {
        **{one: provenance[name] for name, one in HIDDEN.items()},
        engine: f"{provenance['engine']} {provenance['engine_dtype']}",
    }


def lossless(args: Settings) -> int:
    """Decode all subsets with all settings, and write the table; return the exit status."""
    torch.set_num_threads(1)
    check_inputs(args.data, args.path)
    kind = args.decoding or (UNTRAINED if args.drafter_path is None else "gad")
    if kind == UNTRAINED and args.drafter_path is not None:
        drafted = " or ".join(name for name in kinds() if name != UNTRAINED)
        raise needs("--drafter-path", args.drafter_path, drafted)
    if kind != UNTRAINED and args.drafter_path is None and METHODS[kind].needs_drafter:
        raise needs("--decoding", kind, "--drafter-path")
    subsets = args.subsets
    first = Models(args.data, subsets[0], "fp32", "cpu")
    of = {one: first.on(one) for one in subsets}
    verifier, task = first.load(args.path)

    def systems(options: Mapping[str, Any]) -> dict[str, FairseqSystem]:
        spec = Spec.of(options)
        return {one: FairseqSystem(spec, models, args.path, {}) for one, models in of.items()}

    block = 0
    if kind != UNTRAINED:
        drafter = {} if args.drafter_path is None else {"drafter_path": args.drafter_path}
        block = systems({"decoding": kind} | drafter)[subsets[0]].generator.config.block_size
    joined = task.source_dictionary == task.target_dictionary
    ways = variants(joined, kind, args.drafter_path, block)
    judges = systems({"decoding": "beam", "beam": 1})
    sentences = {one: choose(task, one, verifier, args.limit) for one in subsets}
    rows = []
    with tqdm(total=len(args.batch_sizes) * len(ways), unit="variant", disable=None) as progress:
        for size in args.batch_sizes:
            wanted = {
                one: [out.tokens for out in decode(judge, sentences[one], size, lambda _: None)]
                for one, judge in judges.items()
            }
            for options in ways:
                variant = systems(options)
                counts = count(variant, sentences, wanted, size)
                last = variant[subsets[-1]]
                drafts = last.generator.config.drafter_dtype
                row = labels(size, options) | counts
                row |= {} if drafts is None else {"drafts": drafts}
                rows.append(row | made_by(last.provenance()))
                progress.update()
    notes = [
        f"Subsets: {','.join(subsets)}; fp32. Judge: fairseq's own SequenceGenerator, beam 1.",
        "A tie: the outputs part where the two tokens' log-probabilities are closer than 1e-4.",
        "Passes: mean decoder passes per sentence; greedy's own count is its tokens.",
    ]
    if not joined and kind == UNTRAINED:
        notes.append("First guess source-copy: not run; source and target have a dictionary each.")
    what = "every decoder without a drafter" if kind == UNTRAINED else kind
    title = f"Lossless: {what} against fairseq greedy"
    documents.save_made(Made(args.argv, args.out, title), Table.of(rows, notes=notes))
    return 0
