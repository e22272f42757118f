"""``paradec demo``: a table that compares all decoders on the same sentences.

A preset of ``paradec benchmark``: every sentence at batch 1 (fp32, CPU), first untimed, for tokens
and passes, then in timed rounds in which the decoders alternate sentence by sentence.
"""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import option_error
from ...extras import is_installed
from ...files import language_pair
from ...registry import METHODS
from ...translator.translator import Translator
from ..analysis.benchmark_tables import OWN_BEAM, OWN_GREEDY, compared_with
from ..analysis.promises import BREAKABLE
from ..data.samples import series, speed_ups
from ..data.table import Cells, Table, Value, column
from ..show.table import terminal_table
from .judge import agreement, references
from .outputs import OTHER_MODEL
from .presets import Comparison
from .specs import Spec
from .text import plain_text, text_language
from .timings import Benchmark
from .traits import DRAFTERS, drafting, traits

#: Additional models that a demo folder may hold, by the file's name.
REORDERED = {"ibdecoder": "ibdecoder.pt", "ibdecoder+SA": "ibdecoder_sa.pt"}


def comparison(asked: Comparison) -> Comparison:
    """Return a benchmark of the demo's decoders, and of those that are given.

    Raises:
        UsageError: DATA has no test set.
    """
    data = Path(asked.data)
    if data.is_dir() and not any(data.glob("test.*")):
        raise option_error("DATA", asked.data, "a folder with a `test` subset")
    own = {spec.label: spec for spec in decoders(data)}
    if not is_installed("fairseq"):
        own.pop(OWN_BEAM, None)  # every benchmark has it there
    own |= {spec.label: spec for spec in asked.decoder}
    return dataclasses.replace(
        asked,
        decoder=[*own.values()],
        subset=["test"],
        reference=[],
        timed=asked.sentences,
        batch_sizes=[],
        dtype="fp32",
        device="cpu",
        peers=(),
        busy=True,
    )


def decoders(data: Path) -> list[Spec]:
    """Return the rows of the table, besides those of every benchmark.

    Args:
        data: the folder; a method whose drafter does not lie there has no row.
    """
    rows: dict[str, dict[str, Any]] = {}
    for method in METHODS.values():
        drafter = {} if method.drafter is None else {"drafter_path": drafter_in(data, method.name)}
        if None not in drafter.values():
            for label, options in (traits(method.name).demo or {}).items():
                rows[label] = {"decoding": method.name, **options, **drafter}
    search = {"decoding": "multiword_beam", "beam": 5}
    models = {label: data / name for label, name in REORDERED.items() if (data / name).is_file()}
    if models:
        rows[OWN_BEAM] = search
    for label, path in models.items():
        rows[f"{label} beam 5"] = {**search, "path": str(path)}
    return [Spec.of(options, label) for label, options in rows.items()]


def drafter_in(data: Path, decoding: str) -> str | None:
    """Return the checkpoint in a folder that drafts for a method; None: there is none."""
    kind = METHODS[decoding].drafter
    path = data / f"{DRAFTERS.get(str(kind))}.pt"
    return str(path) if path.is_file() else None


def table(bench: Benchmark, same: dict[str, dict[str, int]], not_run: Mapping[str, str]) -> Table:
    """Return the comparison.

    Args:
        bench: what was measured.
        same: the outputs that are greedy search's, by decoder.
        not_run: what is not run, and what it needs.
    """
    seconds = bench.seconds(f"latency/{bench.plan.threads[0]}")
    count = len(bench.plan.sentences)
    samples = [sample for name, own in seconds.items() for sample in series(name, own)]
    gains = speed_ups(samples, compared_with(seconds)[0])
    rows: list[Cells] = []
    for name, own in seconds.items():
        outputs = bench.journal.entries[f"outputs/1/{name}"]
        passes = sum(outputs["passes"])
        tokens = sum(len(tokens) + 1 for tokens in outputs["tokens"])  # </s>
        identical = Value.share(same[name]["identical"], count) if name in same else OTHER_MODEL
        row: Cells = {
            "decoder": name,
            column("passes", "passes a sentence", form=".2f"): passes / count,
            column("tokens", "tokens a pass", form=".2f"): tokens / passes,
            column("ms", "ms a sentence", form=".1f"): 1000
            * statistics.median(map(sum, own))
            / count,
            column("gain", "speed-up", "x", ".2f"): gains[name, None].middle,
            "identical": identical,
        }
        rows.append(row)
    rows += [
        dict.fromkeys(rows[0]) | {"decoder": name, "identical": f"not run: {why}"}
        for name, why in not_run.items()
    ]
    return Table.of(rows)


def examples(bench: Benchmark, label: str, targets: Sequence[str], language: str) -> str:
    """Show a short, a medium and a long sentence with translation and reference."""
    task, sentences = bench.systems[0].task, bench.plan.sentences
    texts = bench.journal.entries[f"outputs/1/{label}"]["texts"]
    lines = []
    chosen = [int(share * (len(sentences) - 1)) for share in (0.1, 0.5, 0.9)]
    for place in dict.fromkeys(chosen):  # fewer than three sentences: each once
        tokens = task.dataset("test")[sentences[place]]["source"]
        words = task.source_dictionary.string(tokens.tolist()).split()
        lines += ["", f"source       {plain_text(words, language)}"]
        lines += [f"translation  {texts[place]}", f"reference    {targets[sentences[place]]}"]
    return "\n".join(lines)


def describe(same: dict[str, dict[str, int]], judge: str, name_of_judge: str) -> str:
    """Describe in words how the outputs of lossless decoders differ from the judge's."""
    lines = []
    for name, counts in same.items():
        if counts["identical"] < counts["sentences"]:
            lines.append(
                f"{name}: {counts['ties']} sentences differ from {name_of_judge} by a tie, "
                f"{counts['beyond ties']} BEYOND TIES"
            )
    names = ", ".join(name for name in same if name != judge)
    return "\n".join(lines) or (
        f"Every sentence identical, token for token, to {name_of_judge}: {names}."
    )


def show(bench: Benchmark, data: Path, not_run: Mapping[str, str]) -> int:
    """Print what was measured; return 1 if an exact decoder diverged beyond ties, else 0.

    Args:
        bench: what was measured.
        data: the folder.
        not_run: what is not run, and what it needs.
    """
    plan, task = bench.plan, bench.systems[0].task
    outputs = {
        system.label: bench.journal.entries[f"outputs/1/{system.label}"]["tokens"]
        for system in bench.systems
    }
    base, judge = compared_with(outputs)
    same = {
        system.label: agreement(system, plan.sentences, outputs[system.label], outputs[judge])
        for system in bench.systems
        if system.promise != OTHER_MODEL
    }
    exact = {s.label: same[s.label] for s in bench.systems if s.promise in BREAKABLE}
    print(
        f"{len(plan.sentences)} sentences, batch 1, fp32, CPU, {plan.threads[0]} thread(s); times "
        f"are medians of {plan.rounds} interleaved round(s) after a warm-up, from ids to text; "
        f"speed-up is against {base}.\n"
    )
    print(terminal_table(table(bench, same, not_run)))
    named = "our greedy" if judge == OWN_GREEDY else judge
    print(f"\nidentical: token for token, to {named}; other models have other outputs.")
    print("Times depend on this machine.")
    print(describe(exact, judge, named))
    source, _ = language_pair(str(data))
    language = text_language(str(data), str(source))
    if language is not None:  # an image's intensities are not shown
        texts, _ = references(str(data), "test", len(task.dataset("test")), None)
        print(examples(bench, judge, texts, language))
    return int(any(counts["beyond ties"] for counts in exact.values()))


def translated(data: Path, text: str) -> str:
    """Translate a sentence by the folder's model, with each drafter that lies beside it.

    Raises:
        UsageError: DATA is no model folder.
    """
    translator = Translator(data, flag="DATA")
    lines = [f"source       {text}"]
    for decoding in ("greedy", *drafting()):
        path = drafter_in(data, decoding)
        if path is not None or METHODS[decoding].drafter is None:
            drafter: dict[str, Any] = {} if path is None else {"drafter_path": path}
            (translation,) = translator.results([text], decoding=decoding, **drafter)
            lines.append(f"{decoding:<13}{translation.problem or translation.text}")
    return "\n".join(lines)
