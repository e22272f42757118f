"""``paradec lossless --beams``: n-best lists of drafted beams against fairseq's own search."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tqdm import tqdm

from ...decoding.audit import Audit
from ...errors import needs, option_error
from ...methods.configure import BEAM_DEPTH
from ...plugin.tasks.loading import check_inputs
from ...registry import METHODS
from ..analysis.promises import PROVENANCE
from ..settings import Made
from . import documents
from .loading import choose
from .lossless import Settings
from .specs import Spec
from .systems import FairseqSystem, Models

#: What computes the passes.
ENGINES = ("native", "torch")


def lossless_beams(args: Settings) -> int:
    """Decode all subsets by every beam and engine, and write the table; return the exit status.

    Raises:
        UsageError: the decoder has no beam.
    """
    torch.set_num_threads(1)
    check_inputs(args.data, args.path)
    able = [name for name, method in METHODS.items() if method.beams]
    if args.decoding not in able:
        raise option_error("--decoding", args.decoding, f"{', '.join(able)} with --beams")
    if METHODS[args.decoding].needs_drafter and args.drafter_path is None:
        raise needs("--decoding", args.decoding, "--drafter-path")
    subsets = args.subsets
    first = Models(args.data, subsets[0], "fp32", "cpu")
    sentences = {}
    for one in subsets:
        models, task = first.on(one).load(args.path)
        sentences[one] = choose(task, one, models, args.limit)
    drafter = {} if args.drafter_path is None else {"drafter_path": args.drafter_path}
    rows = []
    total = sum(map(len, sentences.values())) * len(args.batch_sizes) * len(args.beams)
    with tqdm(total=total, unit="sentence", disable=None) as progress:
        for size in args.batch_sizes:
            for beam in args.beams:
                options = {"decoding": args.decoding, "beam": beam, "nbest": beam, **drafter}
                options["block_size"] = BEAM_DEPTH  # given: not chosen by what passes cost
                rows += _rows(args.path, first, sentences, size, options, progress.update)
    notes = [
        f"Subsets: {','.join(subsets)}; fp32. Judge: fairseq's own SequenceGenerator with the same "
        "beam. Identical: all hypotheses of the n-best list, in their order.",
        "A tie: a search in which two candidates of a decision score closer than 1e-4.",
        "Passes: mean decoder passes per sentence.",
    ]
    title = f"Lossless: {args.decoding} with a beam against fairseq's beam search"
    documents.save_made(Made(args.argv, args.out, title), "lossless", notes, rows)
    return 0


def _rows(
    path: str,
    models: Models,
    sentences: Mapping[str, Sequence[int]],
    size: int,
    options: dict[str, Any],
    advance: Callable[[int], Any],
) -> list[dict[str, Any]]:
    """Return a row for each engine; fairseq's search runs once for both."""
    rows = []
    counts = {engine: [0, 0, 0, 0] for engine in ENGINES}  # sentences, identical, ties, passes
    systems: dict[str, FairseqSystem] = {}
    for subset, numbers in sentences.items():
        systems = {
            engine: FairseqSystem(
                Spec.of(options | {"engine": engine}), models.on(subset), path, {}
            )
            for engine in ENGINES
        }
        some = systems[ENGINES[0]]
        judge = Audit(some.models, some.task.target_dictionary, options["beam"])
        judge.judge.max_len_b = judge.max_len_b
        for start in range(0, len(numbers), size):
            sample = some.sample(numbers[start : start + size])
            with torch.no_grad():
                wanted = judge.judge.generate(some.models, sample)
            for engine, system in systems.items():
                hypos = some.task.inference_step(system.generator, some.models, sample)
                found = judge.compare_with(sample, hypos, wanted)
                for verdict, hypo in zip(found, hypos, strict=True):
                    facts = (1, verdict["identical"], verdict.get("tie", False), hypo[0]["steps"])
                    counts[engine] = [a + int(b) for a, b in zip(counts[engine], facts)]
            advance(len(wanted))
    for engine, (number, identical, ties, passes) in counts.items():
        system = systems[engine]
        made_by = {name: system.provenance()[name] for name in PROVENANCE}
        rows.append(
            {
                "batch size": size,
                "decoder": options["decoding"],
                "beam": options["beam"],
                "block": system.generator.config.block_size,
                "sentences": number,
                "identical": identical,
                "ties": ties,
                "beyond ties": number - identical - ties,
                "passes": round(passes / number, 3),
            }
            | made_by
            | {"drafts": system.generator.config.drafter_dtype}
        )
    return rows
