"""``paradec demo``: a table that compares all decoders on the same sentences.

A small benchmark: fairseq's own search with beam 5 and beam 1 and this package's decoders translate
every sentence at batch 1 (fp32, CPU), first untimed, for tokens and passes, then in timed rounds in
which the decoders alternate sentence by sentence.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...errors import option_error
from ...plugin.tasks.loading import check_inputs
from ...registry import METHODS
from ..analysis.benchmark_tables import BEAM, GREEDY
from ..data.journal import Journal
from ..data.samples import series, speed_ups
from ..show.table import aligned
from .benchmark import ALWAYS
from .judge import agreement, references
from .loading import by_length, evenly
from .specs import Spec
from .systems import EXACT, OTHER_MODEL, FairseqSystem, Models
from .text import plain_text, text_language
from .timings import Benchmark, Plan
from .traits import DRAFTERS, traits

#: Additional models that a demo folder may hold, by the file's name.
REORDERED = {"ibdecoder": "ibdecoder.pt", "ibdecoder+SA": "ibdecoder_sa.pt"}


@dataclass(frozen=True)
class Settings:
    """Of ``paradec demo``."""

    data: Path  # fairseq's data folder, with a ``test`` subset
    path: Path | None  # the checkpoint; None: ``model.pt`` of the folder
    drafters: Mapping[str, Path | None]  # given checkpoints, by the kind of drafter
    sentences: int  # at most so many
    rounds: int  # so many, interleaved
    block_size: int  # positions per pass
    threads: int  # of the CPU


def decoders(
    block_size: int, drafters: Mapping[str, str], reordered: Mapping[str, str] | None = None
) -> dict[str, dict[str, Any]]:
    """Return the rows of the table, each with its options by name.

    Args:
        block_size: positions per pass of the blocked Jacobi decoders and of the sliding window.
        drafters: checkpoints by the kind of drafter; a method without one has no row.
        reordered: by label, checkpoints of models that write several words per step.
    """
    rows = dict(ALWAYS)
    for method in METHODS.values():
        of_method = traits(method.name).demo
        if of_method is None or method.drafter not in {None, *drafters}:
            continue
        drafter = {} if method.drafter is None else {"drafter_path": drafters[method.drafter]}
        for label, options in of_method(block_size).items():
            rows[label] = {"decoding": method.name, **options, **drafter}
    search = {"decoding": "multiword_beam", "beam": 5}
    if reordered:
        rows["own beam 5"] = search
    for label, path in (reordered or {}).items():
        rows[f"{label} beam 5"] = {**search, "path": path}
    return rows


def table(bench: Benchmark, same: dict[str, dict[str, int]]) -> str:
    """Format the comparison."""
    heads = ["decoder", "passes", "tokens", "ms per", "speed-up", "identical"]
    under = ["", "per sentence", "per pass", "sentence", "", "to greedy"]
    cells = [heads, under]
    seconds = bench.seconds(f"latency/{bench.plan.threads[0]}")
    count = len(bench.plan.sentences)
    samples = [one for name, rounds in seconds.items() for one in series(name, rounds)]
    gains = speed_ups(samples, BEAM)
    for name in (system.label for system in bench.systems):
        outputs = bench.journal.entries[f"outputs/1/{name}"]
        passes = sum(outputs["passes"])
        tokens = sum(len(tokens) + 1 for tokens in outputs["tokens"])  # </s>
        time = statistics.median(map(sum, seconds[name])) / count
        cells.append(
            [
                name,
                f"{passes / count:.2f}",
                f"{tokens / passes:.2f}",
                f"{1000 * time:.1f}",
                f"{gains[name, None].middle:.2f}x",
                f"{same[name]['identical']}/{count}" if name in same else OTHER_MODEL,
            ]
        )
    return aligned(cells, heads=2)


def examples(bench: Benchmark, label: str, targets: Sequence[str], language: str | None) -> str:
    """Show a short, a medium and a long sentence with translation and reference."""
    task, sentences = bench.systems[0].task, bench.plan.sentences
    texts = bench.journal.entries[f"outputs/1/{label}"]["texts"]
    lines = []
    chosen = [int(share * (len(sentences) - 1)) for share in (0.1, 0.5, 0.9)]
    for place in dict.fromkeys(chosen):  # fewer than three sentences: each once
        tokens = task.dataset("test")[sentences[place]]["source"]
        words = task.source_dictionary.string(tokens).split()
        lines += ["", f"source       {plain_text(words, language)}"]
        lines += [f"translation  {texts[place]}", f"reference    {targets[sentences[place]]}"]
    return "\n".join(lines)


def describe(same: dict[str, dict[str, int]]) -> str:
    """Describe in words how the outputs of lossless decoders differ from greedy search's."""
    lines = []
    for name, counts in same.items():
        if counts["identical"] < counts["sentences"]:
            lines.append(
                f"{name}: {counts['ties']} sentences differ from fairseq greedy by a tie, "
                f"{counts['beyond ties']} BEYOND TIES"
            )
    names = ", ".join(name for name in same if name != GREEDY)
    return "\n".join(lines) or (
        f"Every sentence identical, token for token, to fairseq greedy: {names}."
    )


def given_or_usual(given: Path | None, usual: Path) -> str | None:
    """Return the given file; else the usual one, if it exists."""
    path = usual if given is None and usual.is_file() else given
    return None if path is None else str(path)


def demo(args: Settings) -> int:
    """Run the demo; return 1 if an exact decoder diverged beyond ties, else 0."""
    data, path = str(args.data), str(args.path or args.data / "model.pt")
    if args.data.is_dir() and not any(args.data.glob("test.*")):
        raise option_error("--data", data, "a folder with a `test` subset")
    check_inputs(data, path, "--data")
    torch.set_num_threads(args.threads)
    models = Models(data, "test", "fp32", "cpu")
    drafters = {
        kind: given_or_usual(args.drafters.get(kind), args.data / f"{name}.pt")
        for kind, name in DRAFTERS.items()
    }
    found = {label: args.data / name for label, name in REORDERED.items()}
    rows = decoders(
        args.block_size,
        {kind: drafter for kind, drafter in drafters.items() if drafter is not None},
        {label: str(path) for label, path in found.items() if path.is_file()},
    )
    systems = [FairseqSystem(Spec.of(one, label), models, path, {}) for label, one in rows.items()]
    task = systems[0].task
    sentences = evenly(by_length(task.dataset("test")), args.sentences)
    plan = Plan(sentences, sentences, (), (args.threads,), args.rounds, busy=True)
    bench = Benchmark(systems, plan, Journal(None, {}))
    bench.run()
    outputs = {name: bench.journal.entries[f"outputs/1/{name}"]["tokens"] for name in rows}
    same = {
        s.label: agreement(s, sentences, outputs[s.label], outputs[GREEDY])
        for s in systems
        if s.promise != OTHER_MODEL
    }
    exact = {s.label: same[s.label] for s in systems if s.promise == EXACT}

    print(
        f"{len(sentences)} sentences, batch 1, fp32, CPU, {args.threads} thread(s); times are "
        f"medians of {args.rounds} interleaved round(s) after a warm-up, from ids to text; "
        "speed-up is against fairseq beam 5.\n"
    )
    print(table(bench, same))
    print("\nidentical: token for token, to fairseq greedy; other models have other outputs.")
    print("Times depend on this machine.")
    print(describe(exact))
    language = text_language(data, task.cfg.source_lang)
    if language is not None:  # an image's intensities are not shown
        print(
            examples(
                bench,
                GREEDY,
                references(data, "test", len(task.dataset("test")), None)[0],
                language,
            )
        )
    return int(any(counts["beyond ties"] for counts in exact.values()))
