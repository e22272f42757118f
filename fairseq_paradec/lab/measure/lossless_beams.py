"""``paradec lossless --beams``: n-best lists of drafted beams against fairseq's own search.

Finished rows are kept beside the table, in ``FILE.partial.jsonl``: a run that was stopped goes on.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from tqdm import tqdm

from ...decoding.audit import Audit
from ...errors import needs, option_error
from ...methods.configure import BEAM_DEPTH
from ...plugin.tasks.loading import check_inputs
from ...registry import METHODS
from ..data import documents
from ..data.journal import Journal
from ..data.table import Table
from ..settings import Made
from .inputs import origin
from .loading import choose
from .lossless import Settings, made_by
from .specs import Spec
from .systems import FairseqSystem, Models

#: What may compute the passes.
ENGINES = ("native", "torch")


def lossless_beams(args: Settings) -> int:
    """Decode all subsets by every beam and engine, and write the table; return the exit status.

    Raises:
        UsageError: the decoder has no beam, an engine is none, or the unfinished run is another.
    """
    torch.set_num_threads(1)
    check_inputs(args.data, args.path)
    able = [name for name, method in METHODS.items() if method.beams]
    if args.decoding not in able:
        raise option_error("--decoding", args.decoding, f"{', '.join(able)} with --beams")
    if METHODS[args.decoding].needs_drafter and args.drafter_path is None:
        raise needs("--decoding", args.decoding, "--drafter-path")
    for engine in args.engines:
        if engine not in ENGINES:
            raise option_error("--engines", engine, " and ".join(ENGINES))
    documents.check_out(args.out)
    models = Models(args.data, args.subsets[0], "fp32", "cpu")
    sentences = {}
    for subset in args.subsets:
        loaded, task = models.on(subset).load(args.path)
        sentences[subset] = choose(task, subset, loaded, args.limit)
    given: dict[str, Any] = {"decoding": args.decoding, "block_size": BEAM_DEPTH}
    if args.drafter_path is not None:
        given["drafter_path"] = args.drafter_path
    files = [args.path, *filter(None, [args.drafter_path])]
    judged_in = max(args.batch_sizes)
    run = given | {
        "schema": "lossless",
        "sentences": sentences,
        "batch size of the judge": judged_in,
        "origin": {subset: origin(args.data, subset, files) for subset in args.subsets},
    }
    unfinished = args.out.with_suffix(".partial.jsonl")
    journal = Journal(unfinished, run)
    steps = [*itertools.product(args.engines, args.beams, args.batch_sizes)]
    rows = []
    for engine, beam, size in tqdm(steps, unit="row", disable=None):
        options = given | {"beam": beam, "nbest": beam, "engine": engine}
        systems = {
            subset: FairseqSystem(Spec.of(options), models.on(subset), args.path, {})
            for subset in args.subsets
        }
        judge, key = f"fairseq/{beam}", f"{engine}/{beam}/{size}"
        if judge not in journal.entries:
            journal.put(judge, _judged(systems, sentences, beam, judged_in))
        if key not in journal.entries:
            journal.put(key, _row(systems, sentences, journal.entries[judge], beam, size))
        row, provenance = journal.entries[key]
        rows.append(row | made_by(provenance))
    notes = [
        f"Subsets: {','.join(args.subsets)}; fp32. Judge: fairseq's own SequenceGenerator with the "
        f"same beam, in batches of {judged_in}. Identical: all hypotheses of the n-best list, in "
        "their order.",
        "A tie: a search in which two candidates of a decision score closer than 1e-4.",
        "Passes: mean decoder passes per sentence.",
    ]
    title = f"Lossless: {args.decoding} with a beam against fairseq's beam search"
    documents.save_made(Made(args.argv, args.out, title), Table.of(rows, notes=notes))
    journal.close()
    unfinished.unlink()
    return 0


def _batches(
    systems: Mapping[str, FairseqSystem],
    sentences: Mapping[str, Sequence[int]],
    beam: int,
    size: int,
) -> Iterator[tuple[str, FairseqSystem, Audit, dict[str, Any]]]:
    """Yield each batch with its subset, decoder and judge."""
    for subset, numbers in sentences.items():
        system = systems[subset]
        audit = Audit(system.models, system.task.target_dictionary, beam)
        audit.judge.max_len_b = audit.max_len_b
        for start in range(0, len(numbers), size):
            yield subset, system, audit, system.sample(numbers[start : start + size])


def _judged(
    systems: Mapping[str, FairseqSystem],
    sentences: Mapping[str, Sequence[int]],
    beam: int,
    size: int,
) -> dict[str, dict[str, list[list[int]]]]:
    """Return the tokens of fairseq's n-best lists, of each subset by its sentences' numbers."""
    found: dict[str, dict[str, list[list[int]]]] = {subset: {} for subset in sentences}
    for subset, system, audit, sample in _batches(systems, sentences, beam, size):
        with torch.no_grad():
            lists = audit.judge.generate(system.models, sample)
        for number, hypos in zip(sample["id"].tolist(), lists, strict=True):
            found[subset][str(number)] = [hypo["tokens"].tolist() for hypo in hypos]
    return found


def _row(
    systems: Mapping[str, FairseqSystem],
    sentences: Mapping[str, Sequence[int]],
    judged: Mapping[str, Mapping[str, list[list[int]]]],
    beam: int,
    size: int,
) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Decode all subsets by one setting; return the row of the table, and what made it."""
    number = identical = ties = passes = 0
    for subset, system, audit, sample in _batches(systems, sentences, beam, size):
        hypos = system.task.inference_step(system.generator, system.models, sample)
        lists = [judged[subset][str(number)] for number in sample["id"].tolist()]
        wanted = [[{"tokens": torch.tensor(tokens)} for tokens in each] for each in lists]
        found = audit.compare_with(sample, hypos, wanted)
        number += len(found)
        identical += sum(one["identical"] for one in found)
        ties += sum(one.get("tie", False) for one in found)
        passes += sum(hypo[0]["steps"] for hypo in hypos)
    config = system.generator.config
    row = {
        "batch_size": size,
        "decoder": config.decoding,
        "beam": beam,
        "block": config.block_size,
        "sentences": number,
        "identical": identical,
        "ties": ties,
        "beyond_ties": number - identical - ties,
        "passes": round(passes / number, 3),
        "drafts": config.drafter_dtype,
    }
    return row, system.provenance()
