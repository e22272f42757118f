"""paradec-benchmark: one model, one test set, any decoders; times that can be defended.

Every decoder translates the same sentences in the same process, in rounds in which each sentence is
decoded by all decoders one after the other, each time in another order. The timer covers what a
user waits for: batching, encoder, decoder, detokenised text. fairseq's beam 5 and greedy search and
this package's greedy search are always among the decoders, so that an algorithm's gain and an
engine's are told apart. What was measured is kept after each round: run the same command again to
go on.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import logging
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from .. import images
from ..analysis.benchmark_tables import BASELINES, BEAM, GREEDY, OWN_GREEDY, tables
from ..analysis.markdown import markdown
from ..analysis.quality import Quality
from ..analysis.result_pages import page
from ..analysis.timing import total
from ..errors import UsageError, option_error
from ..measure import loading, machine
from ..measure.documents import BENCHMARK, check_benchmark
from ..measure.systems import (
    COMMON,
    DTYPES,
    EXACT,
    PEER,
    CTranslate2System,
    FairseqSystem,
    Models,
    Output,
    System,
)
from ..measure.text import holds_images, plain_text, quality_of, text_language
from . import arguments

ALWAYS = {BEAM: "beam --beam 5", GREEDY: "beam --beam 1", OWN_GREEDY: "greedy"}
DEFAULT_DECODERS = ("pgj --block-size 5", "hgj --jacobi-window sliding --block-size 5")

# A batch size is useful if some decoder gains this factor by it.
USEFUL = 1.05
WARM_UP = 5
# Where references are from, without raw ones: of texts, and of images, which are whole in DATA.
DETOKENISED, TARGETS = "DATA, detokenised", "the targets of DATA"
# How often a round is repeated because others used the machine meanwhile.
AGAIN = 3


@dataclass(frozen=True)
class Plan:
    """What is to be measured.

    Attributes:
        sentences: numbers of the sentences, from short to long.
        timed: those whose latency is taken.
        batch_sizes: of the throughput sweep, growing.
        threads: CPU threads; the first is used for all but the thread sweep.
        rounds: timed ones.
        device: ``cpu`` or ``cuda``.
        busy: measure also if others use the machine.
    """

    sentences: list[int]
    timed: list[int]
    batch_sizes: tuple[int, ...]
    threads: tuple[int, ...]
    rounds: int
    device: str = "cpu"
    busy: bool = False

    def batches(self, size: int) -> list[list[int]]:
        """Return the sentences in batches of similar length."""
        return [self.sentences[i : i + size] for i in range(0, len(self.sentences), size)]


@dataclass
class Journal:
    """What was measured so far, on disk, so that a benchmark can be broken off.

    Attributes:
        path: one JSON object a line; the first says which run it is of. None: memory only.
        fingerprint: of the run.
        entries: by key.

    Raises:
        UsageError: the file is of another run.
    """

    path: Path | None
    fingerprint: dict[str, Any]
    entries: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read what is there, and keep others from writing to it."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"--out: another process measures into {self.path}") from None
        self._file.seek(0)
        whole, _, torn = self._file.read().rpartition(b"\n")
        if torn:  # by a kill
            self._file.truncate(len(whole) + bool(whole))
        if not whole:
            self._write(self.fingerprint)
            return
        try:
            head, *rest = map(json.loads, whole.split(b"\n"))
            self.entries = {entry["key"]: entry["value"] for entry in rest}
        except (ValueError, TypeError, KeyError) as error:
            raise UsageError(f"--out: {self.path} is damaged ({error}); delete it") from None
        _refuse_other(self.path, head, json.loads(json.dumps(self.fingerprint)))

    def _write(self, entry: dict[str, Any]) -> None:
        """Append one line, and see it on the disk."""
        self._file.write(json.dumps(entry, ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def put(self, key: str, value: Any) -> None:
        """Keep a measurement."""
        self.entries[key] = value
        if self.path is not None:
            self._write({"key": key, "value": value})

    def close(self) -> None:
        """Let others go on with the file."""
        if self.path is not None:
            self._file.close()


def _refuse_other(path: Path, there: Any, here: dict[str, Any], what: str = "") -> None:
    """Refuse to go on with a run under other circumstances, and name the first of them."""
    for name, value in here.items():
        old = there.get(name) if isinstance(there, dict) else None
        if isinstance(value, dict) and isinstance(old, dict):
            _refuse_other(path, old, value, f"{what}{name} ")
        elif old != value:
            raise UsageError(
                f"--out: {path} holds an unfinished run with other {what}{name}: got {value!r}; "
                f"allowed: {old!r}, as there; or delete that file"
            )


class Benchmark:
    """Measures systems and keeps raw samples; does not judge them.

    Args:
        systems: the rows, ``BASELINES`` among their labels.
        plan: what to measure.
        journal: where to keep it.
        bar: progress, advanced by one a translated sentence.
    """

    def __init__(self, systems: Sequence[System], plan: Plan, journal: Journal, bar: Any) -> None:
        self.systems, self.plan, self.journal, self.bar = list(systems), plan, journal, bar
        self.own = [system for system in systems if system.promise != PEER]
        self._observed: dict[str, dict[int, list[str]]] = {}

    def run(self) -> None:
        """Measure all that the journal does not hold yet."""
        self._use_threads(self.plan.threads[0])
        for system in self.systems:
            self.observe(system, 1)
        for threads in self.plan.threads:
            self._use_threads(threads)
            # A peer has threads of its own: it belongs to one setting only.
            among = self.systems if threads == self.plan.threads[0] else self.own
            items = [[sentence] for sentence in self.plan.timed]
            self.time(f"latency/{threads}", among, items)
        self._use_threads(self.plan.threads[0])
        best: dict[str, float] = {}
        for size in self.plan.batch_sizes:
            for system in self.own:
                self.observe(system, size)
            self.time(f"throughput/{size}", self.own, self.plan.batches(size))
            found = {
                name: len(self.plan.sentences) / min(map(total, rounds))
                for name, rounds in self.seconds(f"throughput/{size}").items()
            }
            if best and all(found[name] < USEFUL * best[name] for name in found):
                break
            best = found

    def observe(self, system: System, size: int) -> None:
        """Translate everything once, untimed: what comes out, in how many passes and MiB."""
        key = f"outputs/{size}/{system.label}"
        if key in self.journal.entries:
            return

        def work() -> dict[int, Output]:
            found: dict[int, Output] = {}
            for batch in self.plan.batches(size):
                found |= dict(zip(batch, system.translate(batch), strict=True))
                self.bar.update(len(batch))
            return found

        # What is built at a first call is no memory of the system's that happens to come first.
        self._warm_up(system, self.plan.batches(size))
        found, memory = machine.with_peak_memory(work, self.plan.device)
        outputs = [found[i] for i in self.plan.sentences]
        passes = [output.passes for output in outputs]
        blocks = [output.blocks for output in outputs]
        self.journal.put(
            key,
            {
                "tokens": [output.tokens for output in outputs],
                "texts": [output.text for output in outputs],
                "passes": None if None in passes else passes,
                "blocks": None if None in blocks else blocks,
                "memory": memory,
            },
        )

    def time(self, key: str, systems: Sequence[System], items: Sequence[list[int]]) -> None:
        """Time whole translations in rounds: each item by all systems before the next item.

        Args:
            key: under which the seconds of each round are kept, with the round's number.
            systems: to be compared.
            items: batches of sentences.
        """
        warm = False
        for turn in range(self.plan.rounds):
            if f"{key}/{turn}" in self.journal.entries:
                continue
            if not warm:
                for system in systems:
                    self._warm_up(system, items)
                warm = True
            entry = self._round(systems, items, turn)
            for _ in range(AGAIN):
                if self.plan.busy or (entry["busy"] or 0) <= machine.BUSY_CORES:
                    break
                entry = self._round(systems, items, turn)
            else:
                machine.refuse_busy(entry["busy"])
            self.journal.put(f"{key}/{turn}", entry)

    def _warm_up(self, system: System, items: Sequence[list[int]]) -> None:
        """Translate a few items, the first and the last among them."""
        step = max(1, (len(items) - 1) // WARM_UP)
        for item in [*items[:-1:step][:WARM_UP], items[-1]]:
            system.translate(item)

    def _round(
        self, systems: Sequence[System], items: Sequence[list[int]], turn: int
    ) -> dict[str, Any]:
        """Time one round; compare what comes out with what came out untimed."""
        if not self.plan.busy:
            machine.wait_until_idle()
        seconds: dict[str, list[float]] = {system.label: [] for system in systems}
        changed = dict.fromkeys(seconds, 0)
        order = random.Random(turn)
        others = machine.Others()
        for item in items:
            # In an order of its own each time: what one system leaves behind (in caches) is not
            # always there for the same other one.
            for system in order.sample(list(systems), len(systems)):
                begin = self._now()
                outputs = system.translate(item)
                seconds[system.label].append(round(self._now() - begin, 7))
                changed[system.label] += self._changed(system, item, outputs)
                self.bar.update(len(item))
        busy = others.cores()
        return {
            "busy": None if busy is None else round(busy, 3),
            "seconds": seconds,
            "changed": changed,
        }

    def _changed(self, system: System, item: list[int], outputs: Sequence[Output]) -> int:
        """Count outputs that are not those of the untimed pass; ties of exact ones apart."""
        if system.label not in self._observed:
            entry = self.journal.entries[f"outputs/1/{system.label}"]
            tokens = dict(zip(self.plan.sentences, entry["tokens"], strict=True))
            self._observed[system.label] = tokens
        before = self._observed[system.label]
        return sum(
            output.tokens != before[sentence]
            and not system.tie(sentence, output.tokens, before[sentence])
            for sentence, output in zip(item, outputs, strict=True)
        )

    def _now(self) -> float:
        """Return the time once the device has done what it was given."""
        if self.plan.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def _use_threads(self, threads: int) -> None:
        torch.set_num_threads(threads)

    def seconds(self, key: str) -> dict[str, list[list[float]]]:
        """Return what ``time`` kept under a key: by system, round and item."""
        rounds = [self.journal.entries[f"{key}/{turn}"] for turn in range(self.plan.rounds)]
        names = rounds[0]["seconds"]
        return {name: [one["seconds"][name] for one in rounds] for name in names}

    def measured(self, kind: str) -> Iterator[str]:
        """Yield the settings (threads, batch sizes) for which there are times, in order."""
        wanted = self.plan.threads if kind == "latency" else self.plan.batch_sizes
        for setting in wanted:
            if f"{kind}/{setting}/0" in self.journal.entries:
                yield str(setting)

    def changed(self, name: str) -> int:
        """Return how many outputs of a system were others when timed than untimed."""
        return sum(one["changed"].get(name, 0) for one in self._rounds())

    def busiest(self) -> float | None:
        """Return how many cores others used at most, during a round; None if not to be known."""
        found = [one["busy"] for one in self._rounds()]
        return None if None in found else max(found)

    def _rounds(self) -> list[dict[str, Any]]:
        """Return what was kept of the timed rounds, all settings together."""
        entries = self.journal.entries.items()
        return [one for key, one in entries if key.startswith(("latency/", "throughput/"))]


def agreement(
    system: System, sentences: Sequence[int], ours: Sequence[list[str]], theirs: Sequence[list[str]]
) -> dict[str, int]:
    """Count where a system's tokens are fairseq greedy's.

    Args:
        system: if it promises to be exact, its model says what is a tie.
        sentences: their numbers.
        ours: the system's tokens.
        theirs: fairseq greedy's.
    """
    triples = list(zip(sentences, ours, theirs, strict=True))
    different = [triple for triple in triples if triple[1] != triple[2]]
    ties = sum(system.tie(*triple) for triple in different) if system.promise == EXACT else 0
    return {
        "sentences": len(triples),
        "identical": len(triples) - len(different),
        "ties": ties,
        "beyond ties": len(different) - ties,
    }


def report(bench: Benchmark, quality: Quality, setting: dict[str, Any]) -> dict[str, Any]:
    """Put together what was measured, without title and circumstances.

    Args:
        bench: that has run.
        quality: with the references, in the order of the plan's sentences.
        setting: what the run was about.

    Returns:
        The JSON document, its tables made from the raw samples in it.
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
                "promise": system.promise,
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
    task = bench.systems[0].task
    sizes_of = task.dataset(setting["subset"]).src_sizes
    document: dict[str, Any] = {
        "setting": setting | {"busy cores": bench.busiest()},
        "signatures": quality.signatures(),
        "systems": systems,
        "source_lengths": [int(sizes_of[i]) for i in plan.timed],
        "seconds": {
            kind: {one: bench.seconds(f"{kind}/{one}") for one in bench.measured(kind)}
            for kind in ("latency", "throughput")
        },
    }
    return document | {"tables": tables(document)}


def references(task: Any, data: str, subset: str, given: Path | None) -> tuple[list[str], str]:
    """Return the references of a whole subset as plain text, and where they are from.

    Args:
        task: with the subset.
        data: the data folder; its ``raw/SUBSET.LANG`` is taken if it is there.
        subset: of the data.
        given: ``--reference``.

    Raises:
        UsageError: the file given is missing, or does not fit.
    """
    dataset, language = task.dataset(subset), task.cfg.target_lang
    raw = Path(data) / "raw" / f"{subset}.{language}"
    path = given or (raw if raw.is_file() else None)
    if path is None:
        if dataset.tgt is None:
            raise option_error("--subset", subset, "a subset with references, or --reference FILE")
        symbols = (task.target_dictionary.string(tokens).split() for tokens in dataset.tgt)
        spoken = text_language(data, language)
        source = TARGETS if spoken is None else DETOKENISED
        return [plain_text(one, spoken) for one in symbols], source
    if not path.is_file():
        raise option_error("--reference", str(path), "a file that exists")
    lines = path.read_text(encoding="utf-8").split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    if len(lines) != len(dataset):
        raise option_error(
            "--reference", f"{path} with {len(lines)} lines", f"a line for each of {len(dataset)}"
        )
    return lines, str(path)


def evenly(items: list[int], count: int | None) -> list[int]:
    """Return so many of the items, evenly chosen; all if there are no more, or for None."""
    if count is None or count >= len(items):
        return items
    return [items[int(i * len(items) / count)] for i in range(count)]


def make_plan(system: System, args: argparse.Namespace) -> Plan:
    """Choose the sentences: from short to long, evenly if not all are wanted.

    Empty ones, and those beyond the model's positions, cannot be decoded and are left out.

    Raises:
        UsageError: none is left.
    """
    dataset = system.task.dataset(args.subset)
    longest = min(model.max_positions()[0] for model in system.models)
    order = [i for i in loading.by_length(dataset) if 1 < dataset.src_sizes[i] <= longest]
    if not order:
        raise option_error("--subset", args.subset, "a subset with sentences that can be decoded")
    sentences = evenly(order, args.sentences)
    return Plan(
        sentences=sentences,
        timed=evenly(sentences, args.timed),
        batch_sizes=tuple(sorted({size for size in args.batch_sizes if size <= len(sentences)})),
        threads=tuple(dict.fromkeys(args.threads)),
        rounds=args.rounds,
        device=args.device,
        busy=args.busy,
    )


def make_systems(args: argparse.Namespace, common: dict[str, Any]) -> list[System]:
    """Load models and build the decoders.

    Raises:
        UsageError: a decoder cannot be built, or has the name of another.
    """
    models = Models(args.data, args.subset, args.dtype, args.device)
    chosen = args.decoder or DEFAULT_DECODERS
    systems: list[System] = []
    for label, spec in ALWAYS.items():
        systems.append(FairseqSystem(spec, models, args.path, common, label))
    systems += [FairseqSystem(spec, models, args.path, common) for spec in chosen]
    if args.peers:
        systems += [
            CTranslate2System(beam, kind, models, args.path, common)
            for kind in ("float32", "int8")
            for beam in (1, 5)
        ]
    labels = [system.label for system in systems]
    for name in labels:
        if labels.count(name) > 1:
            raise option_error("--decoder", name, "a LABEL= of its own for each decoder")
    return systems


def fingerprint(
    args: argparse.Namespace, made_by: dict[str, Any], systems: Sequence[System]
) -> dict[str, Any]:
    """Return what must be the same for a run to be gone on with."""
    ignored = ("out", "busy", "title")
    arguments = {"--" + k.replace("_", "-"): str(v) for k, v in sorted(vars(args).items())
                 if k not in ignored}  # fmt: skip
    files = {Path(file) for system in systems for file in system.files}
    files |= {*Path(args.data).glob(f"{args.subset}.*"), *Path(args.data).glob("dict.*.txt")}
    files |= {*Path(args.data).glob(f"raw/{args.subset}.*")}
    files |= {args.reference} if args.reference else set()
    files |= {*Path(args.data).glob(images.SIZES)}
    package = Path(__file__).resolve().parents[1]
    code = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        code.update(path.read_bytes())
    return {
        "schema": BENCHMARK,
        "argument": arguments,
        "file": {
            str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(files)
        },
        "code": code.hexdigest(),
        "machine": {k: v for k, v in made_by["machine"].items() if k != "threads"},
        "version": made_by["versions"],
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Console entry point; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="paradec-benchmark",
        description=__doc__,
        epilog="example: paradec-benchmark data-bin/demo.en-de --path data-bin/demo.en-de/model.pt "
        "--decoder 'pgj --block-size 5' --decoder 'wide=hgj --block-size 12' --rounds 3 "
        "--out runs/demo.json",
    )
    add, number = parser.add_argument, arguments.whole_number
    add("data", metavar="DATA", help="fairseq data folder")
    add("--path", required=True, help="checkpoint whose greedy output is the yardstick")
    add(
        "--decoder",
        action="append",
        metavar="SPEC",
        help="a row: [LABEL=]DECODING and flags of fairseq-generate in one word, for example "
        "'hgj --block-size 8' or 'student=beam --path other.pt --beam 4'; may be given often "
        f"(default: {', '.join(map(repr, DEFAULT_DECODERS))}); {', '.join(BASELINES)} are always "
        "there",
    )
    add("--subset", default="test", help="of DATA (default: test)")
    add("--reference", type=Path, help="plain text (default: DATA/raw/SUBSET.LANG if it is there)")
    add("--sentences", type=number, help="so many, evenly from short to long (default: all)")
    add("--timed", type=number, default=200, help="of them for latency (default: 200)")
    add("--rounds", type=number, default=5, help="timed rounds (default: 5)")
    add(
        "--batch-sizes",
        type=arguments.whole_numbers,
        default=[4, 16, 64, 256],
        help="throughput sweep; it ends early where no decoder gains (default: 4,16,64,256)",
    )
    add(
        "--threads",
        type=arguments.whole_numbers,
        default=[1],
        help="CPU threads; more than one number: latency with each, all else with the first "
        "(default: 1)",
    )
    add("--dtype", choices=list(DTYPES), default="fp32", help="of all decoders (default: fp32)")
    add("--device", choices=["cpu", "cuda"], default="cpu", help="(default: cpu)")
    add("--max-len-a", type=arguments.positive, help="fairseq's, for all decoders")
    add("--max-len-b", type=number, help="fairseq's, for all decoders")
    add("--min-len", type=number, help="fairseq's, for all decoders")
    add("--unkpen", type=float, help="fairseq's, for all decoders")
    add("--temperature", type=arguments.positive, help="fairseq's, for all decoders")
    add("--peers", action="store_true", help="CTranslate2 on the same checkpoint, too (CPU)")
    add("--busy", action="store_true", help="measure also while others use the machine")
    add("--title", help="of the section in RESULTS.md")
    add("--out", type=Path, required=True, help="FILE.json; FILE.md and FILE.png go beside it")
    args = parser.parse_args(argv)
    logging.disable(logging.WARNING)
    try:
        return arguments.run("paradec-benchmark", lambda: _run(args, argv))
    finally:
        logging.disable(logging.NOTSET)


def _run(args: argparse.Namespace, argv: Sequence[str] | None) -> int:
    """Measure, and write the three files."""
    if args.out.suffix != ".json":
        raise option_error("--out", str(args.out), "a name that ends in .json")
    if args.device == "cuda" and not torch.cuda.is_available():
        raise option_error("--device", "cuda", "cpu: torch finds no CUDA device")
    common = {name: getattr(args, name) for name in COMMON if getattr(args, name) is not None}
    if args.peers and (args.device != "cpu" or set(common) - {"max_len_b", "min_len"}):
        raise option_error(
            "--peers", "given", "--device cpu, and no limits but --max-len-b and --min-len"
        )
    loading.check_inputs(args.data, args.path)
    if args.peers and holds_images(args.data):
        raise option_error("--peers", "given", "it with texts; DATA holds images")
    # Before anything is built: generators are built, and peers tuned, with these threads.
    torch.set_num_threads(args.threads[0])
    args.out.parent.mkdir(parents=True, exist_ok=True)
    made_by = machine.circumstances("benchmark", argv)
    systems = make_systems(args, common)
    task = systems[0].task
    plan = make_plan(systems[0], args)
    texts, source = references(task, args.data, args.subset, args.reference)
    quality = quality_of(args.data, task.cfg.target_lang, [texts[i] for i in plan.sentences])
    if source == DETOKENISED:
        print(
            f"paradec-benchmark: no {args.data}/raw/{args.subset}.{task.cfg.target_lang} and no "
            f"--reference: {quality.metrics[0]} is against the targets of DATA, "
            "detokenised",
            file=sys.stderr,
        )
    unfinished = args.out.with_suffix(".partial.jsonl")
    journal = Journal(unfinished, fingerprint(args, made_by, systems))
    tune_peers(systems, plan, journal)
    with tqdm(
        desc="translating", unit=" sentences", total=work_left(plan, systems, journal)
    ) as bar:
        bench = Benchmark(systems, plan, journal, bar)
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
        "limits": common,
    }
    document = {
        "schema": BENCHMARK,
        "version": 1,
        "title": args.title or f"Benchmark of {args.path}",
        "notes": notes(setting, systems, args),
        **made_by,
        **report(bench, quality, setting),
    }
    document["notes"] += [f"{k}: {v}" for k, v in document["signatures"].items()]
    check_benchmark(document, str(args.out))
    save(args.out, document)
    unfinished.unlink()
    journal.close()
    print(markdown(document["tables"]))
    return 0


def tune_peers(systems: Sequence[System], plan: Plan, journal: Journal) -> None:
    """Give each peer the number of threads that is best for it, the same after a restart."""
    for system in systems:
        if isinstance(system, CTranslate2System):
            key = f"threads/{system.label}"
            if key not in journal.entries:
                if not plan.busy:
                    machine.wait_until_idle()
                few = plan.timed[:: max(1, len(plan.timed) // 20)]
                system.tune_threads(few, len(os.sched_getaffinity(0)))
                journal.put(key, system.threads)
            system.use_threads(journal.entries[key])


def work_left(plan: Plan, systems: Sequence[System], journal: Journal) -> int:
    """Return how many translations are to be made at most, for the progress bar."""
    own = [system for system in systems if system.promise != PEER]
    count = len(plan.sentences)
    work = {f"outputs/1/{s.label}": count for s in systems}
    for size in plan.batch_sizes:
        work |= {f"outputs/{size}/{s.label}": count for s in own}
        work |= {f"throughput/{size}/{r}": count * len(own) for r in range(plan.rounds)}
    for threads in plan.threads:
        among = systems if threads == plan.threads[0] else own
        each = len(plan.timed) * len(among)
        work |= {f"latency/{threads}/{r}": each for r in range(plan.rounds)}
    return sum(amount for key, amount in work.items() if key not in journal.entries)


def notes(
    setting: dict[str, Any], systems: Sequence[System], args: argparse.Namespace
) -> list[str]:
    """Return what a reader must know to read the numbers right."""
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
        *(f"`{s.label}`: `{s.command}`" for s in systems if s.label != s.command),
    ]
    if missing > 0:
        found.append(f"{missing} sentences fewer than asked for: not there, empty, or too long.")
    if too_large:
        found.append(f"Batch sizes above the number of sentences, not run: {too_large}.")
    return found


def save(path: Path, document: dict[str, Any]) -> None:
    """Write the JSON document, and beside it its page and its picture."""
    from ..analysis.benchmark_plot import draw

    whole = json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n"
    picture = path.with_suffix(".png")
    for file, text in ((path, whole), (path.with_suffix(".md"), page(document, picture.name))):
        new = file.with_name(file.name + ".new")
        new.write_text(text, encoding="utf-8")
        new.replace(file)
    draw(document, picture)


if __name__ == "__main__":
    sys.exit(main())
