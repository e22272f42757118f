"""``paradec benchmark``: quality, passes and times of decoders, for one model and one test set.

fairseq's beam 5 and greedy search and this package's greedy search are always among the decoders,
to separate the gain of an algorithm from that of the engine.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...config import flag
from ...engine.settings import usable_device
from ...errors import needs, option_error
from ...images import holds_images
from ...plugin.tasks.loading import check_inputs
from ..analysis.benchmark_tables import BEAM, GREEDY, OWN_GREEDY, shown_names
from ..analysis.promises import PROVENANCE
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
from .loading import choose, evenly
from .peers import CTranslate2System, numbers_of_threads
from .specs import COMMON, Spec
from .systems import PEER, FairseqSystem, Models, System
from .text import quality_of
from .timings import Benchmark, Plan
from .transformers_peer import transformers_systems

ALWAYS: dict[str, dict[str, Any]] = {
    BEAM: {"decoding": "beam", "beam": 5},
    GREEDY: {"decoding": "beam", "beam": 1},
    OWN_GREEDY: {"decoding": "greedy"},
}


@dataclass(frozen=True)
class Settings:
    """Of ``paradec benchmark``."""

    data: str  # fairseq's data folder
    path: str  # the checkpoint whose greedy output is the yardstick
    decoders: Sequence[Spec]  # besides those of ``ALWAYS``
    subset: str  # of the data
    reference: Path | None  # plain text; None: that of the data
    sentences: int | None  # how many; None: all
    timed: int  # of them, for latency
    rounds: int  # so many, interleaved
    batch_sizes: Sequence[int]  # of the throughput sweep
    threads: Sequence[int]  # of the CPU; the first is for all but latency
    dtype: str  # of all decoders
    device: str  # ``cpu`` or ``cuda``
    limits: Mapping[str, Any]  # those of ``COMMON`` that are given
    peers: Sequence[str]  # other engines
    busy: bool  # also while others use the machine
    argv: Sequence[str]  # the words after ``paradec``
    out: Path  # the JSON file to write; page and picture go beside it
    title: str | None  # of the document; None: made of the checkpoint's name


def benchmark(args: Settings) -> int:
    """Measure, and write the three files; return the exit status."""
    if args.out.suffix != ".json":
        raise option_error("--out", str(args.out), "a name that ends in .json")
    usable_device(args.device)
    if args.peers and set(args.limits) - {"max_len_b", "min_len"}:
        raise needs("--peers", True, "no limits but --max-len-b and --min-len")
    if CTRANSLATE2 in args.peers and args.device != "cpu":
        raise needs("--peers", CTRANSLATE2, "--device cpu; transformers takes any")
    check_inputs(args.data, args.path)
    if args.peers and holds_images(args.data):
        raise needs("--peers", True, "texts; DATA holds images")
    # Before anything is built: generators are built with these threads.
    torch.set_num_threads(args.threads[0])
    documents.check_out(args.out)
    systems, left_out = make_systems(args)
    task = systems[0].task
    plan = make_plan(systems[0], args)
    texts, source = references(
        args.data, args.subset, len(task.dataset(args.subset)), args.reference
    )
    quality = quality_of(args.data, task.cfg.target_lang, [texts[i] for i in plan.sentences])
    if source == DETOKENISED:
        print(
            f"paradec benchmark: no {args.data}/raw/{args.subset}.{task.cfg.target_lang} and no "
            f"--reference: {quality.metrics[0]} is against the targets of DATA, "
            "detokenised",
            file=sys.stderr,
        )
    unfinished = args.out.with_suffix(".partial.jsonl")
    journal = Journal(unfinished, fingerprint(args, systems))
    bench = Benchmark(systems, plan, journal)
    bench.run()
    setting = {
        "data": args.data,
        "path": args.path,
        "subset": args.subset,
        "reference": source,
        "sentences": len(plan.sentences),
        "timed sentences": len(plan.timed),
        "rounds": plan.rounds,
        "dtype": args.dtype,
        "device": args.device,
        "threads": list(plan.threads),
        "limits": dict(args.limits),
    }
    document = {
        "schema": BENCHMARK,
        "version": VERSION,
        "title": args.title or f"Benchmark of {args.path}",
        "notes": [*notes(setting, systems, args), *left_out],
        **machine.circumstances(args.argv),
        **report(bench, quality, setting),
    }
    document["notes"] += [f"{k}: {v}" for k, v in document["signatures"].items()]
    result = check(document, str(args.out))
    save(args.out, result)
    unfinished.unlink()
    journal.close()
    print(markdown(result.tables))
    return 0


def make_systems(args: Settings) -> tuple[list[System], list[str]]:
    """Load models and build the decoders.

    Returns:
        The decoders, and notes on those that are left out.

    Raises:
        UsageError: a decoder cannot be built, or has the name of another.
    """
    models = Models(args.data, args.subset, args.dtype, args.device)
    common = dict(args.limits)
    systems: list[System] = []
    specs = [*(Spec.of(one, label) for label, one in ALWAYS.items()), *args.decoders]
    systems += [FairseqSystem(spec, models, args.path, common) for spec in specs]
    left_out: list[str] = []
    if CTRANSLATE2 in args.peers:
        systems += [
            CTranslate2System(beam, kind, threads, models, args.path, common)
            for kind in ("float32", "int8")
            for beam in (1, 5)
            for threads in numbers_of_threads(len(os.sched_getaffinity(0)), args.threads)
        ]
    if TRANSFORMERS in args.peers:
        more, left_out = transformers_systems(systems, models, args.path, common)
        systems += more
    labels = [system.label for system in systems]
    for name in labels:
        if labels.count(name) > 1:
            raise option_error("--decoder", name, "a LABEL= of its own for each decoder")
    return systems, left_out


def make_plan(system: System, args: Settings) -> Plan:
    """Choose the sentences and the measurements."""
    sentences = choose(system.task, args.subset, system.models, args.sentences)
    return Plan(
        sentences=sentences,
        timed=evenly(sentences, args.timed),
        batch_sizes=tuple(sorted({size for size in args.batch_sizes if size <= len(sentences)})),
        threads=tuple(dict.fromkeys(args.threads)),
        rounds=args.rounds,
        device=args.device,
        busy=args.busy,
    )


def fingerprint(args: Settings, systems: Sequence[System]) -> dict[str, Any]:
    """Return the settings that must be equal to continue a run."""
    ignored = ("out", "busy", "title", "argv", "limits", "decoders")
    given = {name: value for name, value in vars(args).items() if name not in ignored}
    given |= {name: args.limits.get(name) for name in COMMON}
    given["decoder"] = [spec.command for spec in args.decoders]
    files = {file for system in systems for file in system.files}
    files |= {str(args.reference)} if args.reference else set()
    return {
        "schema": BENCHMARK,
        "argument": {flag(name): str(value) for name, value in sorted(given.items())},
        **origin(args.data, args.subset, files),
    }


def notes(setting: dict[str, Any], systems: Sequence[System], args: Settings) -> list[str]:
    """Return the notes of the benchmark."""
    wanted = args.sentences or len(systems[0].task.dataset(args.subset))
    missing = wanted - setting["sentences"]
    too_large = [size for size in args.batch_sizes if size > setting["sentences"]]
    found = [
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
        found.append(f"{missing} sentences fewer than asked for: not there, empty, or too long.")
    if too_large:
        found.append(f"Batch sizes above the number of sentences, not run: {too_large}.")
    return found


def save(path: Path, result: Result) -> None:
    """Write the JSON document, and its page and picture in the same folder."""
    from ..show.benchmark_plots import draw

    picture = path.with_suffix(".png")
    documents.write(path, documents.compact(result.content))
    documents.write(path.with_suffix(".md"), page(result, picture.name))
    draw(result.content, picture)


def report(bench: Benchmark, quality: Quality, setting: dict[str, Any]) -> dict[str, Any]:
    """Make the document of a benchmark, without title and circumstances.

    Returns:
        The JSON document.
    """
    plan, entries = bench.plan, bench.journal.entries
    sizes = list(dict.fromkeys(("1", *bench.measured("throughput"))))
    texts = {s.label: entries[f"outputs/1/{s.label}"]["texts"] for s in bench.systems}
    systems = []
    for system in bench.systems:
        name = system.label
        found = {
            size: entries[f"outputs/{size}/{name}"]
            for size in sizes
            if f"outputs/{size}/{name}" in entries
        }
        systems.append(
            {
                "label": name,
                "command": system.command,
                **({"options": system.options} if isinstance(system, FairseqSystem) else {}),
                "promise": system.promise,
                **{name: found["1"]["provenance"][name] for name in PROVENANCE},
                "parameters": system.parameters,
                "dtype": system.dtype,
                "threads": system.threads,
                "passes": None if found["1"]["passes"] is None else sum(found["1"]["passes"]),
                # With </s>, which every output ends in.
                "tokens": sum(len(tokens) + 1 for tokens in found["1"]["tokens"]),
                **({} if found["1"]["blocks"] is None else {"blocks": sum(found["1"]["blocks"])}),
                "scores": quality.scores(texts[name]),
                "differences": {
                    baseline: quality.differences(texts[name], texts[baseline])
                    for baseline in (BEAM, GREEDY)
                },
                "agreement": {
                    size: agreement(
                        system,
                        plan.sentences,
                        one["tokens"],
                        entries[f"outputs/{size}/{GREEDY}"]["tokens"],
                    )
                    for size, one in found.items()
                },
                "memory": {size: one["memory"] for size, one in found.items()},
                "changed": bench.changed(name),
            }
        )
    for record, name in zip(systems, shown_names(systems), strict=True):
        record["shown"] = name
    task = bench.systems[0].task
    sizes_of = task.dataset(setting["subset"]).src_sizes
    return {
        "setting": setting | {"busy cores": bench.busiest()},
        "signatures": quality.signatures(),
        "systems": systems,
        "source_lengths": [int(sizes_of[i]) for i in plan.timed],
        "seconds": {
            kind: {one: bench.seconds(f"{kind}/{one}") for one in bench.measured(kind)}
            for kind in ("latency", "throughput")
        },
    }
