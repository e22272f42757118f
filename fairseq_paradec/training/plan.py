"""From what a user asks for to the settings of a run: flags of fairseq-train, line by line."""

import argparse
import filecmp
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import NoReturn

from ..cli.arguments import whole_number
from ..errors import UsageError, needs, option_error
from ..files import checksum
from . import schedule
from .folder import AVERAGE, CHECKPOINTS, PRESET, Line
from .settings import Flags, Recipe, data, recipe_of, start_of, words

#: Sentences and images are at most so long, in tokens, unless a flag says otherwise (fairseq's).
LONGEST = 1024

#: Tasks whose models train with --autocast; the first is what fairseq takes by itself.
TASKS = ("translation", "image_super_resolution")


@dataclass(frozen=True)
class Given:
    """Such of fairseq-train's flags, after ``--``, as others follow; None: not given."""

    encoder_from: str | None
    start_from: str | None
    base_path: str | None
    drafter_attention: str | None
    decoder_embed_dim: str | None
    task: str | None
    lr_scheduler: str | None
    update_freq: list[int] | None
    warmup_updates: int | None
    max_update: int | None
    max_epoch: int | None
    max_tokens: int | None
    batch_size: int | None
    save_dir: str | None
    fine_tune_base: bool
    autocast: bool
    skip_invalid_size_inputs_valid_test: bool


@dataclass(frozen=True)
class Request:
    """A training that a user asks for; None is the preset's."""

    data: Path
    preset: str = "base"
    arch: str = "transformer"
    start_from: Path | None = None  # the checkpoint to start from, as the architecture does
    epochs: int | None = None  # the length; or ``updates``
    updates: int | None = None
    average: int | None = None  # how many of the last checkpoints are averaged
    seed: int = 1
    processes: int = 1
    smoke: bool = False  # a try-out of some updates
    autocast: str = "auto"  # ``auto``, ``on`` or ``off``
    flags: Sequence[str] = ()  # of fairseq-train; they win


@dataclass
class Plan:
    """The settings of a run.

    Attributes:
        lines: flags of fairseq-train with their values, checksums, and what ``folder`` adds.
        chosen: first words of the lines that the user did not ask for.
        updates: the length of the run, nearly where it is in epochs.
        length: the same, in words.
        saves: there is a checkpoint each so many updates; None: each epoch.
    """

    lines: list[Line] = field(default_factory=list)
    chosen: set[str] = field(default_factory=set)
    updates: int = 0
    length: str = ""

    def add(self, *line: object, chosen: bool = False) -> None:
        """Add a line, which the user asked for, or which was chosen."""
        self.lines.append(tuple(map(str, line)))
        if chosen:
            self.chosen.add(self.lines[-1][0])

    def put(self, flags: Flags, chosen: bool = False) -> None:
        """Add flags, of which True are switches."""
        for name, value in flags.items():
            self.add(*words({name: value}), chosen=chosen)


def plan(request: Request, gpus: int, pays: Callable[[], bool] = lambda: False) -> Plan:
    """Return the settings of a run.

    Raises:
        UsageError: a file is missing, or something does not fit.
    """
    given, image = _given(request.flags), _image_tokens(request.data)
    start_flag, start = _start(request, given)
    conditions = {"cuda" if gpus else "cpu", _attention(request.arch, given)}
    conditions |= {"fast"} if request.arch.startswith("block_nat_fast") else set()
    conditions |= {"images"} if image else set()
    conditions |= {"started"} if start else set()
    conditions |= {"tuned"} if given.fine_tune_base else set()
    conditions |= {"narrow"} if given.decoder_embed_dim else set()
    recipe = recipe_of(request.arch, request.preset, conditions)
    _check(request, recipe, start_flag, start, image, gpus)
    made = Plan()
    made.add(PRESET, request.preset)
    made.add("--arch", request.arch)
    if image:
        made.add("--task", TASKS[1])
    if not recipe.own_size and not (recipe.size_of_start and start):
        made.put(_sides(recipe.size))
    if start_flag != "--base-path":  # that model says it
        made.add(_sharing(request.data))
    _add_length(made, request, given, recipe, image)
    made.add("--cpu" if not gpus else "--fp16")
    made.add("--distributed-world-size", request.processes)
    if _autocast(request, given, gpus, pays):
        made.add("--autocast")
    if request.autocast == "auto":
        made.chosen.add("--autocast")
    more = [*([start_flag, str(start)] if request.start_from else []), *request.flags]
    if more:
        made.add(*more)
    if start:
        made.add(CHECKPOINTS[start_flag], checksum(start)[:16])
    return made


def _add_length(made: Plan, request: Request, given: Given, recipe: Recipe, image: int) -> None:
    """Add all that depends on length and batch: the schedule, too."""
    smoke = data()["smoke"]
    kind, count = recipe.length
    if request.epochs:
        kind, count = "epochs", request.epochs
    if request.updates:
        kind, count = "updates", request.updates
    if request.smoke:
        kind, count = "updates", smoke["updates"]
    batch = smoke["batch"] if request.smoke else recipe.batch
    average = smoke["average"] if request.smoke else request.average or recipe.average
    # A batch is shared among processes, and summed up from pieces that fit into memory. fairseq
    # wants room for its longest sentence, or an image, in each.
    longest = image or (smoke["positions"] if request.smoke else LONGEST)
    pieces = -(-batch // (request.processes * recipe.piece))
    tokens = max(longest, batch // (request.processes * pieces))

    epochs = given.max_epoch or (count if kind == "epochs" else 0)
    made.updates = given.max_update or (count if kind == "updates" else 0)
    made.length = f"{made.updates} updates"
    if epochs:
        an_epoch = schedule.updates_an_epoch(
            request.data,
            given.max_tokens or tokens,
            given.update_freq[0] if given.update_freq else pieces,
            request.processes,
            given.batch_size,
            given.skip_invalid_size_inputs_valid_test,
        )
        made.updates = min(epochs * an_epoch, made.updates or epochs * an_epoch)
        made.length = f"{epochs} epochs (about {made.updates} updates)"
    used = recipe.flags | ({"lr-scheduler": given.lr_scheduler} if given.lr_scheduler else {})
    made.put(recipe.flags | schedule.fit(used, made.updates, recipe.warmup_share), chosen=True)
    if given.warmup_updates is not None:
        schedule.check(given.warmup_updates, made.updates, made.length, used["lr-scheduler"])
    made.put({"max-tokens": tokens, "update-freq": pieces}, chosen=True)
    made.add("--seed", request.seed)
    if kind == "epochs":
        made.add("--max-epoch", count)
    else:
        every = smoke["save_every"] if request.smoke else max(1, made.updates // 100)
        made.add("--max-update", count)
        made.put({"save-interval-updates": every, "keep-interval-updates": average}, chosen=True)
    # fairseq gives no other name to one at the end of an epoch.
    made.put({"keep-last-epochs": average}, chosen=True)
    made.add(AVERAGE, average, chosen=request.average is None)
    if request.smoke:
        if not image:  # images are of one length
            for side in ("source", "target"):
                made.add(f"--max-{side}-positions", longest)
            made.add("--skip-invalid-size-inputs-valid-test")
        made.add("--max-valid-steps", 2)


def _given(flags: Sequence[str]) -> Given:
    """Read such of fairseq-train's flags as others follow."""

    def refuse(message: str) -> NoReturn:
        raise UsageError(f"--: {message}")

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.error = refuse  # type: ignore[method-assign]
    of_type: dict[object, Callable[[str], object]] = {
        int | None: whole_number,  # 0 updates are endless, to fairseq
        list[int] | None: _each_whole,
    }
    for of_given in fields(Given):
        name = f"--{of_given.name.replace('_', '-')}"
        if of_given.type is bool:
            parser.add_argument(name, action="store_true")
        elif of_given.name == "warmup_updates":
            parser.add_argument(name, type=_from_zero)
        else:
            parser.add_argument(name, type=of_type.get(of_given.type, str))
    given = Given(**vars(parser.parse_known_args(list(flags))[0]))
    if given.save_dir is not None:
        raise UsageError("--: --save-dir stands before --, as the run's own")
    return given


def _from_zero(text: str) -> int:
    """Read a whole number from 0 up."""
    if text.isdecimal() and not text.strip("0"):
        return 0
    return whole_number(text)


def _each_whole(text: str) -> list[int]:
    """Read --update-freq: a number, or one for each epoch."""
    return [whole_number(part) for part in text.strip("[]").split(",")]


def _start(request: Request, given: Given) -> tuple[str, Path | None]:
    """Return the flag of fairseq-train that names a checkpoint to start from, and that."""
    named = [flag for flag in CHECKPOINTS if getattr(given, flag[2:].replace("-", "_"))]
    if request.start_from is None:
        if not named:
            return "", None
        return named[0], Path(getattr(given, named[0][2:].replace("-", "_")))
    flag = start_of(request.arch)
    if flag is None:
        needed = "a drafter, heads or a decoder that writes in another order (--arch)"
        raise needs("--start-from", request.start_from, needed)
    if named:
        raise UsageError(f"--start-from and {named[0]} after --: only one of them")
    return f"--{flag}", request.start_from


def _check(
    request: Request, recipe: Recipe, flag: str, start: Path | None, image: int, gpus: int
) -> None:
    """Refuse what is missing or does not fit."""
    if start and not start.is_file():
        flag = "--start-from" if request.start_from else flag
        raise UsageError(f"missing {recipe.started_by or 'Transformer'} ({flag}): {start}")
    if recipe.needs_start and not start:
        raise UsageError(
            f"--start-from is missing: the {recipe.started_by} whose encoder {request.arch} shares"
        )
    if "image_transformer" in request.arch and not image:
        needed = f"images, which DATA ({request.data}) does not hold (no sizes.json)"
        raise needs("--arch", request.arch, needed)
    if gpus and request.processes > gpus:
        allowed = f"at most {gpus}, the number of CUDA devices"
        raise option_error("--processes", request.processes, allowed)


def _attention(arch: str, given: Given) -> str:
    """Return the attention of GAD's drafter."""
    usual = "prefix_causal" if arch.startswith("block_nat_fast") else "bidirectional"
    return given.drafter_attention or usual


def _sides(size: Flags) -> Flags:
    """Return the sizes of both sides."""
    both = {name: value for name, value in size.items() if "layers" not in name}
    return {
        name: value
        for side in ("encoder", "decoder")
        for name, value in {
            f"{side}-layers": size[f"{side}-layers"],
            **{f"{side}-{option}": value for option, value in both.items()},
        }.items()
    }


def _sharing(folder: Path) -> str:
    """Return the flag of shared embeddings that the dictionaries allow.

    Raises:
        UsageError: there are not two of them.
    """
    dictionaries = sorted(folder.glob("dict.*.txt"))
    if len(dictionaries) != 2:
        allowed = "a folder with two dict.LANG.txt"
        raise option_error("DATA", str(folder), allowed)
    same = filecmp.cmp(dictionaries[0], dictionaries[1], shallow=False)
    return "--share-all-embeddings" if same else "--share-decoder-input-output-embed"


def _image_tokens(folder: Path) -> int:
    """Return how many tokens an image has, ``</s>`` counted; 0: DATA holds no images.

    Raises:
        UsageError: DATA is no folder that fairseq takes, or its sizes cannot be read.
    """
    if ":" in str(folder):
        raise option_error("DATA", str(folder), "a path without ':' (fairseq splits it there)")
    if not folder.is_dir():
        raise UsageError(f"missing DATA: {folder}")
    path = folder / "sizes.json"
    if not path.is_file():
        return 0
    try:
        size = json.loads(path.read_text("utf-8"))["hr"]
        return int(size["height"]) * int(size["width"]) * int(size["channels"]) + 1
    except (ValueError, KeyError, TypeError) as error:
        allowed = "a folder of paradec data images; its sizes.json cannot be read"
        raise option_error("DATA", str(folder), allowed) from error


def _autocast(request: Request, given: Given, gpus: int, pays: Callable[[], bool]) -> bool:
    """Return whether products are to be in bfloat16, as far as the flags do not say it already.

    Raises:
        UsageError: it is asked for, and cannot be.
    """
    if request.autocast == "on" and gpus:
        raise needs("--autocast", "on", "a CPU (CUDA_VISIBLE_DEVICES= keeps training there)")
    if gpus or given.autocast or request.autocast == "off":
        return False
    if request.autocast == "on":
        return True
    return given.task in (None, *TASKS) and pays()
