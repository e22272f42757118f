"""``paradec acceptance``: the share of drafted tokens that a verifier accepts, in every setting."""

import hashlib
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from ...config import flag
from ...engine.settings import usable_device
from ...errors import needs, option_error
from ...images import holds_images
from ...plugin.tasks.loading import check_inputs
from ...registry import HEADS, METHODS
from ..analysis.blocks import METHOD, SINGLE_TOKENS
from ..analysis.quality import Quality
from ..data import documents
from ..data.journal import Journal
from ..data.table import Table
from ..settings import Made
from . import SMOKE_SENTENCES
from .acceptance_rows import BLOCK, Options, drafts_alone, histogram, row, shown
from .inputs import origin, subset_files
from .judge import agreement, read_references, score_columns, targets
from .loading import choose
from .specs import Spec
from .systems import (
    EXACT,
    OTHER_MODEL,
    RELAXED,
    FairseqSystem,
    Models,
    columns,
    decode,
    same_greedy,
)
from .text import quality_of

# The flags whose values are combined.
SWEPT = (
    "drafter_path",
    "block_size",
    "draft_confidence",
    "draft_tree",
    "accept_topk",
    "accept_margin",
    "accept_distance",
    "min_block",
)
JUDGE = "fairseq --beam 1"
# Columns that are dropped if no row has a value in them.
OPTIONAL = ("model", "drafter", "confidence", "nodes", "beta", "tau", "epsilon", "l", BLOCK)

END = "</s>"


@dataclass(frozen=True)
class Settings(Made):
    """Of ``paradec acceptance``."""

    data: str  # fairseq's data folder
    path: Sequence[str]  # verifiers, each perhaps an ensemble with ``:`` between its checkpoints
    decoding: Sequence[str]  # methods
    swept: Mapping[str, Sequence[Any]]  # the values of each of SWEPT; [None]: it is not given
    subset: str  # of the data
    raw: Path | None  # plain references; None: none
    max_len_b: int | None  # fairseq's; None: its default
    batch_size: int  # sentences per batch
    sentences: int | None  # how many; None: all
    dtype: str  # of the models
    device: str  # ``cpu`` or ``cuda``
    smoke: bool  # whether only few sentences, and one row of each method, are measured


class Test(NamedTuple):
    """A verifier, and the sentences of a subset that it can translate."""

    path: str  # the verifier's checkpoint
    models: Models  # loads the verifier and drafters
    numbers: list[int]  # the numbers of the sentences, from short to long
    batch_size: int  # sentences per batch
    limits: Options  # fairseq's flags that all settings share

    @property
    def verifier(self) -> list[Any]:
        """The model, or an ensemble."""
        return self.models.load(self.path)[0]

    def system(self, options: Options, **more: Any) -> FairseqSystem:
        """Return the decoder of a setting."""
        if drafts_alone(options["decoding"]):
            options = {"path" if k == "drafter_path" else k: v for k, v in options.items()}
        return FairseqSystem(Spec.of(options), self.models, self.path, self.limits | more)


class Setting(NamedTuple):
    """The setting of one row."""

    test: Test  # the verifier and the sentences
    options: Options  # the options of decoding, by the flags' names


def combinations(args: Settings, tests: Sequence[Test]) -> list[Setting]:
    """Return the settings: greedy, then every method with all values of the flags it reads.

    Raises:
        UsageError: no method reads a flag that is given.
    """
    found = [Setting(test, options) for test in tests for options in _of_one(args, test, tests)]
    for name in SWEPT:
        first = args.swept[name][0]
        if first is None or any(name in setting.options for setting in found):
            continue
        users = [one.name for one in METHODS.values() if name in one.reads]
        if any(name in METHODS[d].reads for d in args.decoding):  # the model's own heads draft
            raise needs(flag(name), first, "a --path that has no heads of its own")
        raise needs(flag(name), first, f"--decoding {' or '.join(users)}")
    return found


def _of_one(args: Settings, test: Test, tests: Sequence[Test]) -> list[Options]:
    """Return the settings of one of the tests."""
    found: list[Options] = [{"decoding": SINGLE_TOKENS}]
    has_heads = any(hasattr(model, "block_heads") for model in test.verifier)
    for decoding in args.decoding:
        method = METHODS[decoding]
        reads = {*method.reads, *(["drafter_path"] if method.drafts_alone else [])}
        if method.drafter == HEADS and has_heads:
            reads.remove("drafter_path")
        elif method.drafter == HEADS and len(tests) > 1 and args.swept["drafter_path"] == [None]:
            continue  # a base, to compare with
        names = [name for name in SWEPT if name in reads]
        for values in itertools.product(*(args.swept[name] for name in names)):
            given = {k: v for k, v in zip(names, values, strict=True) if v is not None}
            found.append({"decoding": decoding, **given})
    if args.smoke:
        found = list({options["decoding"]: options for options in reversed(found)}.values())[::-1]
    return [options for i, options in enumerate(found) if options not in found[:i]]


def prepare(args: Settings) -> list[Setting]:
    """Load the models and choose the sentences; raise errors about settings before any work.

    Raises:
        UsageError: files are missing, or no sentence is left.
    """
    for path in args.path:
        check_inputs(args.data, path)
    subset_files(args.data, args.subset)
    usable_device(args.device)
    for path in args.swept["drafter_path"]:
        alone = next(filter(drafts_alone, args.decoding), None)
        if path is None and alone is not None:
            allowed = f"a checkpoint of --arch block_nat, with {alone}"
            raise option_error("--drafter-path", None, allowed)
        if path is not None and not Path(path).is_file():
            raise option_error("--drafter-path", path, "a fairseq checkpoint")
    models = Models(args.data, args.subset, args.dtype, args.device)
    limits = {} if args.max_len_b is None else {"max_len_b": args.max_len_b}
    numbers: list[int] = []
    tests = [
        Test(path, models, numbers, args.batch_size, limits) for path in dict.fromkeys(args.path)
    ]
    settings = combinations(args, tests)
    readers = [model for test, options in settings for model in test.system(options).models]
    _, task = models.load(args.path[0])
    count = SMOKE_SENTENCES if args.smoke else args.sentences
    numbers += choose(task, args.subset, readers, count)
    return settings


# ---- one setting --------------------------------------------------------------------------------


def judged(test: Test, bar: Any) -> dict[str, Any]:
    """Translate by fairseq's own search; return the tokens, in the order of ``test.numbers``."""
    search = test.system({"decoding": "beam", "beam": 1})
    outputs = decode(search, test.numbers, test.batch_size, bar.update)
    return {"tokens": [[*output.tokens, END] for output in outputs]}


def counted(test: Test, options: Options, wanted: Sequence[list[str]], bar: Any) -> dict[str, Any]:
    """Translate with one setting.

    Returns:
        By sentence ``tokens``, ``texts``, ``passes``, and by pass the numbers of ``drafted`` and
        ``accepted`` tokens; ``flags``, the values of the method's own flags; ``ties``, the number
        of outputs that differ from the judge's by a tie, or None if the setting is not lossless.
    """
    system = test.system(options)
    outputs = decode(system, test.numbers, test.batch_size, bar.update)
    found = columns(outputs)
    ties = None
    if system.promise == EXACT:
        theirs = [one[:-1] for one in wanted]
        ties = agreement(system, test.numbers, found["tokens"], theirs)["ties"]
    return found | {
        "tokens": [[*tokens, END] for tokens in found["tokens"]],
        "flags": METHODS[options["decoding"]].flags(system.generator.config),
        "ties": ties,
    }


# ---- all settings -------------------------------------------------------------------------------


def key(args: Settings, test: Test, options: Options) -> str:
    """Return the key of a setting's result: a checksum of everything that it depends on."""
    drafter = options.get("drafter_path")
    files = [*test.path.split(os.pathsep), *([drafter] if drafter else [])]
    made_of = origin(args.data, args.subset, files) | {
        "options": options,
        "limits": test.limits,
        "sentences": test.numbers,
        "setting": [args.subset, args.batch_size, args.dtype, args.device],
    }
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()


def measured(
    args: Settings, settings: Sequence[Setting]
) -> tuple[dict[str, list[list[str]]], list[dict[str, Any]]]:
    """Return the result of each setting, from an earlier run if available.

    Returns:
        The judge's tokens for each model, and the settings' entries.
    """
    tests = {test.path: test for test, _ in settings}
    judges = {path: key(args, test, {"decoding": JUDGE}) for path, test in tests.items()}
    keys = [key(args, test, options) for test, options in settings]
    journal = Journal(
        args.out.with_suffix(".partial.jsonl"), {"schema": "acceptance", "version": 1}
    )
    missing = [one for one in (*judges.values(), *keys) if one not in journal.entries]
    with tqdm(
        desc="acceptance",
        total=len(missing) * len(settings[0].test.numbers),
        unit=" sentences",
        disable=None,
    ) as bar:
        for path, one in judges.items():
            if one in missing:
                journal.put(one, judged(tests[path], bar))
        wanted = {path: journal.entries[one]["tokens"] for path, one in judges.items()}
        for one, (test, options) in zip(keys, settings, strict=True):
            if one in missing:
                shown_options = (str(value) for value in options.values())
                bar.set_postfix_str(" ".join(shown_options), refresh=False)
                journal.put(one, counted(test, options, wanted[test.path], bar))
    entries = [journal.entries[one] for one in keys]
    journal.close()
    return wanted, entries


def scored_by(args: Settings, test: Test) -> Quality | None:
    """Return the scorer of outputs; None for texts without ``--raw``.

    Raises:
        UsageError: the number of its lines is not that of the sentences, or a line is wrong.
    """
    _, task = test.models.load(test.path)
    if args.raw is not None:
        given = read_references(args.raw, "--raw", len(task.dataset(args.subset)))
    elif holds_images(args.data):
        given = targets(args.data, args.subset)
    else:
        return None
    references = [given[i] for i in test.numbers]
    return quality_of(args.data, task.cfg.target_lang, references)


def acceptance(args: Settings) -> int:
    """Measure all settings and write the table; return the exit status."""
    documents.check_out(args.out)
    settings = prepare(args)
    first = settings[0].test
    quality = scored_by(args, first)
    wanted, entries = measured(args, settings)
    several = len(wanted) > 1
    rows = [
        row(options, entry, wanted[test.path], wanted[first.path], test.path if several else None)
        for (test, options), entry in zip(settings, entries, strict=True)
    ]
    for one, (test, _) in zip(rows, settings, strict=True):
        own = same_greedy(test.verifier, first.verifier)
        if one["label"] != OTHER_MODEL and not own:
            one["label"] = f"{OTHER_MODEL}: {one['label']}"
    if quality is not None:
        greedy = {
            test.path: entry["texts"]
            for (test, options), entry in zip(settings, entries, strict=True)
            if options["decoding"] == SINGLE_TOKENS
        }
        for one, (test, _), entry in zip(rows, settings, entries, strict=True):
            baselines = {"greedy": greedy[test.path]}
            if several:
                baselines["first"] = greedy[first.path]
            one |= score_columns(quality, entry["texts"], baselines)
    for one, entry in zip(rows, entries, strict=True):
        one |= histogram(entry)
    idle = {name for name in OPTIONAL if all(one[name] is None for one in rows)}
    if all(one["decoder"] != METHOD for one in rows):
        idle.add(BLOCK)
    rows = [{k: v for k, v in one.items() if k not in idle} for one in rows]
    found = notes(args, first, several, BLOCK not in idle, quality)
    table = Table.of(rows, notes=found)
    documents.save_made(args, table)
    print(shown(table))
    return 0


def notes(
    args: Settings, first: Test, several: bool, blocks: bool, quality: Quality | None
) -> list[str]:
    """Return the notes of the table."""
    verifiers = "the models are in the rows" if several else f"verifier {first.path}"
    found = [
        f"{len(first.numbers)} sentences of {args.data} ({args.subset}), batch size "
        f"{args.batch_size}, {args.dtype}, {args.device}; {verifiers}"
        + ("." if args.max_len_b is None else f"; --max-len-b {args.max_len_b}."),
        f"Label: {EXACT}, the outputs are those of the model's own greedy search; {RELAXED}, they "
        "may differ"
        + (
            f"; {OTHER_MODEL}: ..., the same for a model with other greedy outputs than the first."
            if several
            else f"; {OTHER_MODEL}, the drafter's own."
        ),
        "Identical: to fairseq's own --beam 1 with the same model. Ties, of exact decoders: the "
        "outputs first differ where the two tokens' log-probabilities are closer than 1e-4.",
        "Tokens count </s>; a pass commits the accepted tokens and one of the verifier's own. "
        "Length ratio: tokens by those of fairseq's --beam 1 with the first model; above "
        "1, blocks are long because outputs are, and passes per sentence tell more.",
        "k: --block-size, beta: --accept-topk, tau: --accept-margin.",
    ]
    if blocks:
        found[-1] = (
            "k: --block-size, beta: --accept-topk, tau: --accept-margin, epsilon: "
            "--accept-distance, l: --min-block."
        )
        found.append(
            "Mean accepted block (Stern et al. 2018): all tokens divided by the number of blocks. "
            "A block is one of the model's own tokens and the accepted drafts after it; the pass "
            "that verifies them also finds the first token of the next block."
        )
    if quality is not None:
        found.append(f"{quality.compared}; 95% paired-bootstrap.")
        if several:
            found.append(
                "Differences are to the same model's greedy search, and to the first model's."
            )
        found += [f"{name}: {signature}" for name, signature in quality.signatures().items()]
    return found
