"""The untimed presets of ``paradec benchmark``: what settings write, and how many passes it takes.

A row is a setting: a model, a decoder with its options and a batch size. Its outputs are compared
with those of fairseq's own search of the same beam, token by token. Finished rows are kept beside
the table, in ``FILE.partial.jsonl``: the same command then makes only rows that are missing, or
whose checkpoints, data, options, plugin or machine have changed.
"""

import collections
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tqdm import tqdm

from ...config import ENGINE_FLAGS, flag
from ...engine.settings import usable_device
from ...errors import needs, option_error
from ...extras import lacks
from ...images import holds_images
from ...model_checks import has_heads
from ...registry import HEADS, METHODS
from ...threads import set_threads
from ..analysis.blocks import SINGLE_TOKENS, block_sizes
from ..analysis.promises import BREAKABLE, EXACT
from ..analysis.quality import Quality
from ..data.table import Cells, Table
from . import count_rows
from .inputs import check_all, origin
from .judge import references, score_columns
from .kept import key, open_journal, save
from .loading import choose, loader
from .outputs import BEAM, OTHER_MODEL
from .own import Loader, NotRun, OwnSystem
from .presets import LOSSLESS, SMOKE_SENTENCES, Comparison
from .specs import Spec, swept
from .text import quality_of, target_language
from .traits import blocks, combined, traits

#: What may be swept in ``lossless``, whose settings have the other options themselves.
FREE = ("drafter_path", "drafter_dtype", "beam", *ENGINE_FLAGS)

#: n-best lists of tokens, by subset and the sentences' numbers.
Lists = Mapping[str, Mapping[str, list[list[int]]]]


class Verifier(NamedTuple):
    """A model, and the sentences that it translates."""

    path: str  # its checkpoint, or an ensemble's
    models: Mapping[str, Loader]  # by subset; they load the model and its drafters
    sentences: dict[str, list[int]]  # by subset, the numbers of the sentences, from short to long
    limits: dict[str, Any]  # fairseq's limits, which all settings share

    def load(self) -> tuple[list[Any], Any]:
        """Return the model's networks, several of an ensemble, and fairseq's task."""
        return self.loader.load(self.path)

    @property
    def loader(self) -> Loader:
        """What loads the models."""
        return next(iter(self.models.values()))

    @property
    def by_ours(self) -> bool:
        """Whether the judge is our own search, for fairseq is not installed."""
        return self.loader.exact != EXACT

    def system(self, spec: Spec, subset: str) -> OwnSystem:
        """Return a decoder of a subset.

        Raises:
            UsageError: it needs fairseq, which is not installed.
        """
        try:
            return self.models[subset].system(spec, self.path, self.limits)
        except NotRun as error:
            raise lacks("fairseq", f"--decoder {spec.label}") from error

    def systems(self, spec: Spec) -> dict[str, OwnSystem]:
        """Return a decoder, by subset."""
        return {subset: self.system(spec, subset) for subset in self.models}

    def batches(self, size: int) -> Iterator[tuple[str, list[int]]]:
        """Yield each batch with its subset."""
        for subset, numbers in self.sentences.items():
            for start in range(0, len(numbers), size):
                yield subset, numbers[start : start + size]


class Setting(NamedTuple):
    """The setting of one row."""

    verifier: Verifier
    spec: Spec
    batch_size: int

    @property
    def beam(self) -> int:
        """The beam of its search, and of the judge's."""
        return int(self.spec.options.get("beam", 1))


# ---- the settings -------------------------------------------------------------------------------


def lossless_kinds() -> list[str]:
    """Return the methods of which ``lossless`` knows settings."""
    return [name for name in METHODS if traits(name).exact is not None]


def variants(verifier: Verifier, spec: Spec, with_beam: bool) -> list[Spec]:
    """Return the settings of a method whose exactness is measured.

    Raises:
        UsageError: it has none, or lacks its drafter.
    """
    name = spec.options["decoding"]
    method, exact = METHODS[name], traits(name).exact
    if method.needs_drafter and "drafter_path" not in spec.options:
        raise needs("--decoder", name, "--sweep drafter-path=FILE")
    assert exact is not None
    if with_beam:
        # A depth by cost may be the plain search.
        depth: dict[str, Any] = {"block_size": 8} if "block_size" in method.reads else {}
        return [spec.changed({**depth, **spec.options})] if method.beams else []
    if traits(name).trained_blocks:
        first = next(iter(verifier.systems(spec).values()))
        trained = first.generator.config.block_size
        exact = combined(blocks(*range(1, trained + 1)), exact)
    _, task = verifier.load()
    if task.source_dictionary != task.target_dictionary:
        exact = [options for options in exact if options.get("jacobi_init") != "source-copy"]
    return [spec.changed(options) for options in exact]


def settings_of(asked: Comparison, verifiers: Sequence[Verifier]) -> list[Setting]:
    """Return the settings of all rows, in their order.

    Raises:
        UsageError: no decoder reads an option that is swept.
    """
    decoders = asked.decoder
    if asked.preset == LOSSLESS and not decoders:
        plain = (name for name in lossless_kinds() if "drafter_dtype" not in METHODS[name].reads)
        decoders = [Spec.of({"decoding": name}) for name in plain]
    settings: list[Setting] = []
    for size, verifier in itertools.product(asked.batch_sizes, verifiers):
        specs = [] if asked.preset == LOSSLESS else [Spec.of({"decoding": SINGLE_TOKENS})]
        for spec in decoders:
            specs += _of_decoder(asked, verifier, spec, len(verifiers) > 1)
        if asked.smoke:
            first = {spec.options["decoding"]: spec for spec in reversed(specs)}
            specs = [*first.values()][::-1]
        by_label = {spec.label: spec for spec in specs}
        settings += [Setting(verifier, spec, size) for spec in by_label.values()]
    for name, values in asked.sweep.items():
        given = [s.spec.path if name == "drafter_path" else None for s in settings]
        if any(given) or any(name in s.spec.options for s in settings):
            continue
        if any(name in METHODS[s.options["decoding"]].reads for s in decoders):
            raise needs(flag(name), values[0], "a --path that has no heads of its own")
        users = [method.name for method in METHODS.values() if name in method.reads]
        raise needs(flag(name), values[0], f"--decoder {' or '.join(users)}")
    if not settings:
        able = [name for name in lossless_kinds() if METHODS[name].beams]
        raise option_error("--decoder", decoders[0].label, f"{', '.join(able)} with a beam")
    return settings


def _of_decoder(asked: Comparison, verifier: Verifier, spec: Spec, several: bool) -> list[Spec]:
    """Return a decoder's settings for one model."""
    allowed = lossless_kinds() if asked.preset == LOSSLESS else METHODS
    if (name := spec.options["decoding"]) not in allowed:
        raise option_error("--decoder", spec.command, ", ".join(allowed))
    method = METHODS[name]
    left_out = []
    if method.drafter == HEADS:
        if has_heads(verifier.load()[0]):
            left_out.append("drafter_path")
        elif several and "drafter_path" not in {*asked.sweep, *spec.options}:
            return []  # a base, to compare with
    if asked.preset != LOSSLESS:
        return swept(spec, asked.sweep, left_out)
    for name in asked.sweep:
        if name not in FREE:
            free = ", ".join(option.replace("_", "-") for option in FREE)
            raise option_error("--sweep", name.replace("_", "-"), f"{free} with --preset lossless")
    first = {name: values for name, values in asked.sweep.items() if name == "drafter_path"}
    drafted = swept(spec, first, left_out)
    return [
        setting
        for drafter in drafted
        for variant in variants(verifier, drafter, "beam" in asked.sweep)
        for setting in swept(variant, asked.sweep, left_out)
    ]


def prepare(asked: Comparison) -> list[Setting]:
    """Load the models and choose the sentences; raise errors about settings before any work.

    Raises:
        UsageError: files are missing, or no sentence is left.
    """
    check_all(asked.data, asked.path, asked.subset)
    first = loader(asked.data, asked.subset[0], asked.dtype, asked.device)
    usable_device(asked.device)
    if asked.threads:
        set_threads(asked.threads[0])
    for path in asked.sweep.get("drafter_path", ()):
        if not os.path.isfile(path):
            raise option_error("--sweep drafter-path", path, "a fairseq checkpoint")
    models = {subset: first.on(subset) for subset in asked.subset}
    sentences: dict[str, list[int]] = {}
    paths = dict.fromkeys(asked.path)
    verifiers = [Verifier(path, models, sentences, asked.limits) for path in paths]
    settings = settings_of(asked, verifiers)
    by_label = {(setting.verifier.path, setting.spec.label): setting for setting in settings}
    readers = [
        model
        for verifier, spec, _ in by_label.values()
        for model in verifier.system(spec, asked.subset[0]).models
    ]
    count = SMOKE_SENTENCES if asked.smoke else asked.sentences
    for subset in asked.subset:
        _, task = models[subset].load(asked.path[0])
        sentences[subset] = choose(task, subset, readers, count)
    return settings


# ---- one setting --------------------------------------------------------------------------------


def judged(verifier: Verifier, beam: int, size: int, advance: Callable[[int], Any]) -> Lists:
    """Return what the judge writes: fairseq's own search, or ours where that is not installed."""
    own = "greedy" if beam == 1 else "multiword_beam"
    decoding = own if verifier.by_ours else "beam"
    width = {} if decoding == "greedy" else {"beam": beam}
    systems = verifier.systems(Spec.of({"decoding": decoding, **width}))
    lists: dict[str, dict[str, list[list[int]]]] = {subset: {} for subset in systems}
    for subset, batch in verifier.batches(size):
        for number, hypos in zip(batch, systems[subset].search(batch), strict=True):
            lists[subset][str(number)] = [hypo["tokens"].tolist() for hypo in hypos]
        advance(len(batch))
    return lists


def counted(
    setting: Setting, wanted: Lists, keep_texts: bool, advance: Callable[[int], Any]
) -> dict[str, Any]:
    """Translate with one setting.

    Returns:
        Sums over all sentences: ``tokens``, with ``</s>``, ``passes``, ``drafted`` tokens,
        ``blocks`` and ``identical`` outputs; ``ties``, outputs that differ from the judge's by a
        tie, or None where they need not be the judge's; ``accepted``, how many passes accept 0, 1,
        2, ... tokens; ``texts``, if they are kept; ``flags``, the values of the method's own flags;
        ``promise``, ``provenance`` and ``drafts``, of what made them.
    """
    spec = setting.spec
    if setting.beam > 1:
        spec = Spec.of({**spec.options, "nbest": setting.beam}, spec.label)
    systems = setting.verifier.systems(spec)
    sums = dict.fromkeys(
        ("sentences", "tokens", "passes", "drafted", "identical", "ties", "blocks"), 0
    )
    accepted: collections.Counter[int] = collections.Counter()
    texts = []
    for subset, batch in setting.verifier.batches(setting.batch_size):
        system = systems[subset]
        for number, hypos in zip(batch, system.search(batch), strict=True):
            output, theirs = system.output(hypos[0]), wanted[subset][str(number)]
            ours = [hypo["tokens"].tolist() for hypo in hypos]
            sums["sentences"] += 1
            sums["tokens"] += len(ours[0])
            sums["passes"] += output.passes or 0
            sums["drafted"] += sum(output.drafted)
            sums["blocks"] += len(block_sizes(output.accepted, len(ours[0])))
            sums["identical"] += ours == theirs
            if ours != theirs and system.promise in (*BREAKABLE, BEAM):
                sums["ties"] += system.tie_of_lists(number, ours, theirs)
            accepted.update(output.accepted)
            texts.append(output.text)
        advance(len(batch))
    config = system.generator.config
    method = METHODS[config.decoding]
    return {
        **sums,
        "ties": sums["ties"] if system.promise in (*BREAKABLE, BEAM) else None,
        "accepted": [accepted[i] for i in range(max(accepted) + 1)],
        "texts": texts if keep_texts else None,
        "flags": method.flags(config),
        "promise": system.promise,
        "provenance": dict(system.provenance()),
        "drafts": config.drafter_dtype if "drafter_dtype" in method.reads else None,
    }


# ---- all settings -------------------------------------------------------------------------------


def measured(
    asked: Comparison, settings: Sequence[Setting], keep_texts: bool
) -> tuple[list[Lists], list[dict[str, Any]]]:
    """Return the result of each setting, from an earlier run if available.

    Returns:
        For each setting the judge's outputs, and its entry: see ``counted``.
    """
    size, sentences = max(asked.batch_sizes), settings[0].verifier.sentences
    where = [asked.dtype, asked.device, asked.limits, sentences, size]

    @functools.cache
    def inputs(path: str, drafter: str | None) -> dict[str, Any]:
        files = [*path.split(os.pathsep), *([drafter] if drafter else [])]
        return {subset: origin(asked.data, subset, files) for subset in asked.subset}

    judges: dict[str, tuple[Verifier, int]] = {}
    keys, judge_of = [], []
    for setting in settings:
        path, spec = setting.verifier.path, setting.spec
        judge_of.append(key(inputs(path, None), where, setting.beam))
        judges[judge_of[-1]] = setting.verifier, setting.beam
        made_of = inputs(path, spec.path or spec.options.get("drafter_path"))
        own = [dict(spec.options), spec.path, setting.batch_size, keep_texts]
        keys.append(key(made_of, where, setting.beam, own))
    journal = open_journal(asked)
    missing = [name for name in (*judges, *keys) if name not in journal.entries]
    count = sum(map(len, sentences.values()))
    with tqdm(
        desc=asked.preset, total=len(missing) * count, unit=" sentences", disable=None
    ) as bar:
        for judge, (verifier, beam) in judges.items():
            if judge in missing:
                journal.put(judge, judged(verifier, beam, size, bar.update))
        for row, judge, setting in zip(keys, judge_of, settings, strict=True):
            if row in missing:
                bar.set_postfix_str(setting.spec.label, refresh=False)
                wanted = journal.entries[judge]
                journal.put(row, counted(setting, wanted, keep_texts, bar.update))
    journal.close()
    return [journal.entries[name] for name in judge_of], [journal.entries[name] for name in keys]


def scorer(asked: Comparison, verifier: Verifier) -> Quality | None:
    """Return the scorer of outputs; None for texts without ``--reference``.

    Raises:
        UsageError: the number of its lines is not that of the sentences, or a line is wrong.
    """
    if asked.preset == LOSSLESS or not (asked.reference or holds_images(asked.data)):
        return None
    ((subset, numbers),) = verifier.sentences.items()
    given = asked.reference[0] if asked.reference else None
    lines, _ = references(asked.data, subset, len(verifier.load()[1].dataset(subset)), given)
    return quality_of(asked.data, target_language(asked.data), [lines[i] for i in numbers])


def count(asked: Comparison) -> int:
    """Measure all settings and write the table; return the exit status."""
    settings = prepare(asked)
    quality = scorer(asked, settings[0].verifier)
    judges, entries = measured(asked, settings, quality is not None)
    rows = [*map(count_rows.lossless, settings, entries)]
    if asked.preset != LOSSLESS:
        several = len({setting.verifier.path for setting in settings}) > 1
        tokens = sum(len(lists[0]) for by in judges[0].values() for lists in by.values())
        rows = [
            count_rows.acceptance(setting, entry, tokens, several)
            for setting, entry in zip(settings, entries, strict=True)
        ]
        _mark_other_models(settings, rows)
        if quality is not None:
            _score(quality, settings, entries, rows)
        for row, entry in zip(rows, entries, strict=True):
            row |= count_rows.histogram(entry)
    notes = count_rows.notes(asked, settings, quality)
    table = Table.of(count_rows.without_idle(rows), count_rows.title(asked, settings), notes)
    save(asked, table, count_rows.shown(table))
    return 0


def _mark_other_models(settings: Sequence[Setting], rows: Sequence[Cells]) -> None:
    """Label what is exact or relaxed for a model with other greedy outputs than the first."""
    first = settings[0].verifier
    for row, setting in zip(rows, settings, strict=True):
        own = setting.verifier
        same = own is first or own.loader.same_greedy(own.load()[0], first.load()[0])
        if not same and row["label"] != OTHER_MODEL:
            row["label"] = f"{OTHER_MODEL}: {row['label']}"


def _score(
    quality: Quality,
    settings: Sequence[Setting],
    entries: Sequence[Mapping[str, Any]],
    rows: Sequence[Cells],
) -> None:
    """Add scores, and differences to greedy search by the same model and by the first."""
    paths = [setting.verifier.path for setting in settings]
    greedy = {
        path: entry["texts"]
        for path, setting, entry in zip(paths, settings, entries, strict=True)
        if setting.spec.options["decoding"] == SINGLE_TOKENS
    }
    for row, path, entry in zip(rows, paths, entries, strict=True):
        # A baseline that is these texts themselves has no difference.
        texts = entry["texts"]
        baselines = {"greedy": greedy[path]}
        if len({*paths}) > 1:
            baselines["first"] = greedy[paths[0]]
        row |= score_columns(quality, texts, baselines)
