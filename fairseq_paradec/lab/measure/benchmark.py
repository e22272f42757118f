"""``paradec benchmark``: quality, passes and times of decoders, for one model and one test set.

fairseq's beam 5 and greedy search and this package's greedy search are always among the decoders,
to separate the gain of an algorithm from that of the engine. Where fairseq is not installed its
rows are not run, and this package's own searches are what all is compared with.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...config import flag
from ...engine.settings import usable_device
from ...errors import needs, option_error
from ...extras import EXTRAS, is_installed
from ...files import check_inputs
from ...images import holds_images
from ...threads import set_threads
from ..analysis.benchmark_tables import (
    BEAM,
    GREEDY,
    OWN_BEAM,
    OWN_GREEDY,
    compared_with,
    judge_of,
    shown_names,
)
from ..analysis.promises import EXACT, PROVENANCE
from ..analysis.quality import Quality
from ..analysis.result_pages import page
from ..data import documents
from ..data.documents import BENCHMARK, VERSION, check
from ..data.journal import Journal
from ..data.table import Result
from ..show.table import markdown
from . import CTRANSLATE2, TRANSFORMERS, machine
from .inputs import origin
from .judge import DETOKENISED, agreement, references
from .loading import choose, evenly, loader
from .outputs import PEER, System
from .own import Loader, NotRun, OwnSystem
from .peers import CTranslate2System, numbers_of_threads
from .presets import Comparison
from .specs import Spec, reads, swept
from .text import quality_of, target_language
from .timings import Benchmark, Plan

#: The decoders of every benchmark.
ALWAYS: dict[str, dict[str, Any]] = {
    BEAM: {"decoding": "beam", "beam": 5},
    GREEDY: {"decoding": "beam", "beam": 1},
    OWN_GREEDY: {"decoding": "greedy"},
}
#: What stands for fairseq's beam search where that is not run.
INSTEAD = {OWN_BEAM: {"decoding": "multiword_beam", "beam": 5}}
#: What scores texts.
SCORERS = ("sacrebleu", "rouge_score")


def benchmark(asked: Comparison) -> int:
    """Measure, and write the three files; return the exit status."""
    (path,) = asked.path
    if asked.peers:
        _check_peers(asked)
    check_inputs(asked.data, path)
    models = loader(asked.data, asked.subset[0], asked.dtype, asked.device)
    usable_device(asked.device)
    # Before anything is built: generators are built with these threads.
    set_threads(asked.threads[0])
    made = make_systems(asked, models)
    plan = make_plan(made.systems[0], asked)
    assert asked.out is not None
    return _document(asked, asked.out, made, plan)


def _check_peers(asked: Comparison) -> None:
    """Refuse peers beside what they do not take."""
    if set(asked.limits) - {"max_len_b", "min_len"}:
        raise needs("--peers", True, "no limits but --max-len-b and --min-len")
    if CTRANSLATE2 in asked.peers and asked.device != "cpu":
        raise needs("--peers", CTRANSLATE2, "--device cpu; transformers takes any")
    if holds_images(asked.data):
        raise needs("--peers", True, "texts; DATA holds images")


def _scorer(asked: Comparison, plan: Plan, count: int) -> tuple[Quality | None, str]:
    """Return the scorer of outputs, and where its references come from.

    Args:
        asked: what is compared.
        plan: the measured sentences.
        count: sentences of the subset.

    Returns:
        The scorer, or None where what scores texts is not installed.
    """
    if not (holds_images(asked.data) or all(map(is_installed, SCORERS))):
        return None, f"none: scores need [{EXTRAS[SCORERS[0]]}]"
    subset, language = asked.subset[0], target_language(asked.data)
    given = asked.reference[0] if asked.reference else None
    texts, source = references(asked.data, subset, count, given)
    quality = quality_of(asked.data, language, [texts[i] for i in plan.sentences])
    if source == DETOKENISED:
        print(
            f"paradec benchmark: no {asked.data}/raw/{subset}.{language} and no --reference: "
            f"{quality.metrics[0]} is against the targets of DATA, detokenised",
            file=sys.stderr,
        )
    return quality, source


def _document(asked: Comparison, out: Path, made: "Made", plan: Plan) -> int:
    """Judge the outputs too, and write the document with its page and picture."""
    systems, subset = made.systems, asked.subset[0]
    quality, source = _scorer(asked, plan, len(systems[0].task.dataset(subset)))
    unfinished = out.with_suffix(".partial.jsonl")
    journal = Journal(unfinished, fingerprint(asked, systems))
    bench = Benchmark(systems, plan, journal)
    bench.run()
    setting = {
        "data": asked.data,
        "path": asked.path[0],
        "subset": subset,
        "reference": source,
        "sentences": len(plan.sentences),
        "timed sentences": len(plan.timed),
        "rounds": plan.rounds,
        "dtype": asked.dtype,
        "device": asked.device,
        "threads": list(plan.threads),
        "limits": asked.limits,
    }
    document = {
        "schema": BENCHMARK,
        "version": VERSION,
        "title": asked.title or f"Benchmark of {asked.path[0]}",
        "notes": [*notes(setting, systems, asked), *made.left_out],
        **machine.circumstances(asked.argv),
        **({"not_run": made.not_run} if made.not_run else {}),
        **report(bench, quality, setting),
    }
    document["notes"] += [f"{k}: {v}" for k, v in document["signatures"].items()]
    result = check(document, str(out))
    save(out, result)
    unfinished.unlink()
    journal.close()
    print(markdown(result.tables))
    return 0


class Made(NamedTuple):
    """What is compared."""

    systems: list[System]
    left_out: list[str]  # notes on those that are left out
    not_run: dict[str, str]  # what else would be, by label: the extra that it needs


def make_systems(asked: Comparison, models: Loader) -> Made:
    """Load models and build the decoders.

    Raises:
        UsageError: a decoder cannot be built, or has the name of another.
    """
    path, common = asked.path[0], asked.limits
    always = ALWAYS if models.exact == EXACT else ALWAYS | INSTEAD
    specs = [Spec.of(options, label) for label, options in always.items()]
    specs += [each for spec in asked.decoder for each in swept(spec, asked.sweep)]
    for name in asked.sweep:
        if not any(reads(spec.options["decoding"], name) for spec in asked.decoder):
            raise needs(f"--sweep {name.replace('_', '-')}", True, "a --decoder that reads it")
    systems: list[System] = []
    left_out: list[str] = []
    not_run: dict[str, str] = {}
    for spec in specs:
        try:
            systems.append(models.system(spec, path, common))
        except NotRun as lack:
            not_run[spec.label] = str(lack)
    for peer in asked.peers:
        packages = [peer] if peer == CTRANSLATE2 else ["fairseq", peer]
        if (lacks := next((p for p in packages if not is_installed(p)), None)) is not None:
            not_run[peer] = f"needs [{EXTRAS[lacks]}]"
    if CTRANSLATE2 in asked.peers and CTRANSLATE2 not in not_run:
        systems += [
            CTranslate2System(beam, kind, threads, models, path, common)
            for kind in ("float32", "int8")
            for beam in (1, 5)
            for threads in numbers_of_threads(len(os.sched_getaffinity(0)), asked.threads)
        ]
    if TRANSFORMERS in asked.peers and TRANSFORMERS not in not_run:
        from .transformers_peer import transformers_systems

        more, left_out = transformers_systems(systems, models, path, common)
        systems += more
    labels = [*(system.label for system in systems), *not_run]
    for name in labels:
        if labels.count(name) > 1:
            raise option_error("--decoder", name, "a LABEL= of its own for each decoder")
    return Made(systems, left_out, not_run)


def make_plan(system: System, asked: Comparison) -> Plan:
    """Choose the sentences and the measurements."""
    sentences = choose(system.task, asked.subset[0], system.models, asked.sentences)
    return Plan(
        sentences=sentences,
        timed=evenly(sentences, asked.timed),
        batch_sizes=tuple(sorted({size for size in asked.batch_sizes if size <= len(sentences)})),
        threads=tuple(dict.fromkeys(asked.threads)),
        rounds=asked.rounds,
        device=asked.device,
        busy=asked.busy,
    )


def fingerprint(asked: Comparison, systems: Sequence[System]) -> dict[str, Any]:
    """Return the settings that must be equal to continue a run."""
    ignored = ("out", "busy", "title", "argv", "decoder")
    given = {name: value for name, value in vars(asked).items() if name not in ignored}
    given["decoder"] = [spec.command for spec in asked.decoder]
    files = {file for system in systems for file in system.files}
    files |= {*map(str, asked.reference)}
    return {
        "schema": BENCHMARK,
        "argument": {flag(name): str(value) for name, value in sorted(given.items())},
        **origin(asked.data, asked.subset[0], files),
    }


def notes(setting: dict[str, Any], systems: Sequence[System], asked: Comparison) -> list[str]:
    """Return the notes of the benchmark."""
    wanted = asked.sentences or len(systems[0].task.dataset(setting["subset"]))
    missing = wanted - setting["sentences"]
    too_large = [size for size in asked.batch_sizes if size > setting["sentences"]]
    lines = [
        f"{setting['sentences']} sentences of {setting['data']} ({setting['subset']}), "
        f"{setting['timed sentences']} of them timed at batch 1, evenly from short to long; "
        f"{setting['rounds']} interleaved rounds after a warm-up; {setting['dtype']}, "
        f"{setting['device']}.",
        "The timer covers batching, encoder, decoder and "
        + ("intensities." if holds_images(setting["data"]) else "detokenised text."),
        f"References: {setting['reference']}.",
        *(
            f"`{s.label}`: `{s.command}`"
            for s in systems
            if s.label != s.command and s.promise != PEER
        ),
    ]
    if missing > 0:
        lines.append(f"{missing} sentences fewer than asked for: not there, empty, or too long.")
    if too_large:
        lines.append(f"Batch sizes above the number of sentences, not run: {too_large}.")
    return lines


def save(path: Path, result: Result) -> None:
    """Write the JSON document, and its page and picture in the same folder.

    Where matplotlib is not installed there is no picture, and a line says so.
    """
    picture, draws = path.with_suffix(".png"), is_installed("matplotlib")
    documents.write(path, documents.compact(result.content))
    documents.write(path.with_suffix(".md"), page(result, picture.name if draws else None))
    if draws:
        from ..show.benchmark_plots import draw

        draw(result.content, picture)
        return
    extra = EXTRAS["matplotlib"]
    print(f"paradec benchmark: no {picture}: it needs [{extra}]", file=sys.stderr)


def report(bench: Benchmark, quality: Quality | None, setting: dict[str, Any]) -> dict[str, Any]:
    """Make the document of a benchmark, without title and circumstances.

    Args:
        bench: what was measured.
        quality: scores the outputs; None: they have no scores.
        setting: what the run is about.

    Returns:
        The JSON document.
    """
    plan, entries = bench.plan, bench.journal.entries
    measured = {
        kind: {setting.partition("/")[2]: setting for setting in bench.settings(kind)}
        for kind in ("latency", "throughput")
    }
    sizes = list(dict.fromkeys(("1", *measured["throughput"])))
    texts = {s.label: entries[f"outputs/1/{s.label}"]["texts"] for s in bench.systems}
    judge, baselines = judge_of(texts), compared_with(texts)
    systems = []
    for system in bench.systems:
        name = system.label
        outputs = {
            size: entries[f"outputs/{size}/{name}"]
            for size in sizes
            if f"outputs/{size}/{name}" in entries
        }
        systems.append(
            {
                "label": name,
                "command": system.command,
                **({"options": system.options} if isinstance(system, OwnSystem) else {}),
                "promise": system.promise,
                **{name: outputs["1"]["provenance"][name] for name in PROVENANCE},
                "parameters": system.parameters,
                "dtype": system.dtype,
                "threads": system.threads,
                "passes": None if outputs["1"]["passes"] is None else sum(outputs["1"]["passes"]),
                # With </s>, which every output ends in.
                "tokens": sum(len(tokens) + 1 for tokens in outputs["1"]["tokens"]),
                **(
                    {}
                    if outputs["1"]["blocks"] is None
                    else {"blocks": sum(outputs["1"]["blocks"])}
                ),
                "scores": {} if quality is None else quality.scores(texts[name]),
                "differences": {
                    baseline: quality.differences(texts[name], texts[baseline]) if quality else {}
                    for baseline in baselines
                },
                "agreement": {
                    size: agreement(
                        system,
                        plan.sentences,
                        output["tokens"],
                        entries[f"outputs/{size}/{judge}"]["tokens"],
                    )
                    for size, output in outputs.items()
                },
                "memory": {size: output["memory"] for size, output in outputs.items()},
                "changed": bench.changed(name),
            }
        )
    for record, name in zip(systems, shown_names(systems), strict=True):
        record["shown"] = name
    task = bench.systems[0].task
    sizes_of = task.dataset(setting["subset"]).src_sizes
    return {
        "setting": setting | {"busy cores": bench.busiest()},
        "signatures": {} if quality is None else quality.signatures(),
        "systems": systems,
        "source_lengths": [int(sizes_of[i]) for i in plan.timed],
        "seconds": {
            kind: {at: bench.seconds(setting) for at, setting in settings.items()}
            for kind, settings in measured.items()
        },
    }
