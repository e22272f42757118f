"""Checkpoints of a training run: read, mend, average."""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError, option_error
from ..files import replacing

if TYPE_CHECKING:  # takes seconds to load
    import torch


def read_state(path: Path) -> dict[str, Any]:
    """Read a checkpoint safely; tensors stay on the disk until they are used.

    Raises:
        UsageError: it is damaged, or no checkpoint of fairseq.
    """
    import torch

    from ..plugin.compat.checkpoints import allow_fairseq_checkpoints, explain_file

    allow_fairseq_checkpoints()
    try:
        load = explain_file(torch.load)
        state = load(str(path), map_location="cpu", weights_only=True, mmap=True)
        state["cfg"]["model"], state["model"], count_updates(state)
    except UsageError:
        raise
    except Exception as error:  # torch raises many errors for a damaged file
        raise UsageError(f"{path}: no whole checkpoint of fairseq-train") from error
    return state


def read_source(source: Path, target: Path) -> dict[str, Any]:
    """Read SOURCE of a command that writes TARGET, with its ``cfg`` in plain dicts.

    Raises:
        UsageError: one of both cannot be.
    """
    from omegaconf import OmegaConf

    from ..plugin.compat.loading import named
    from ..plugin.files import read_checkpoint

    if not source.is_file():
        raise option_error("SOURCE", str(source), "a checkpoint; there is none")
    if not target.absolute().parent.is_dir() or target.is_dir():
        raise option_error("TARGET", str(target), "a file in a folder that exists")
    if target.resolve() == source.resolve():
        raise option_error("TARGET", str(target), "another file than SOURCE")
    with named("SOURCE"):
        state = read_checkpoint(str(source))
    return state | {"cfg": OmegaConf.to_container(state["cfg"])}


def count_updates(state: dict[str, Any]) -> int:
    """Return a checkpoint's number of updates."""
    return int(state["optimizer_history"][-1]["num_updates"])


def last_checkpoints(folder: Path, count: int) -> list[dict[str, Any]]:
    """Return the last checkpoints of a run, oldest first, each number of updates once.

    These are the numbered ones and ``checkpoint_last.pt``: the end of training may have no number.

    Raises:
        UsageError: there is none, or one cannot be read.
    """
    states = {}
    for path in (*folder.glob("checkpoint[0-9_]*.pt"), folder / "checkpoint_last.pt"):
        if path.name != "checkpoint_best.pt":
            state = read_state(path)
            states[count_updates(state)] = state
    return [states[updates] for updates in sorted(states)[-count:]]


def check_same_kind(states: Sequence[dict[str, Any]]) -> None:
    """Refuse checkpoints that are not of one model.

    Raises:
        UsageError: architecture, names or shapes differ.
    """
    first = states[0]
    shapes = {name: tuple(tensor.shape) for name, tensor in first["model"].items()}
    for other in states[1:]:
        arches = [vars_of(state["cfg"]["model"]).get("arch") for state in (first, other)]
        if arches[0] != arches[1]:
            raise UsageError(f"different architectures: {arches[0]} and {arches[1]}")
        others = {name: tuple(tensor.shape) for name, tensor in other["model"].items()}
        different = sorted(
            name for name in shapes.keys() | others.keys() if shapes.get(name) != others.get(name)
        )
        if different:
            raise UsageError(
                f"different weights: {different[0]} is {shapes.get(different[0], 'missing')} in "
                f"one checkpoint and {others.get(different[0], 'missing')} in another "
                f"({len(different)} such names)"
            )


def vars_of(config: Any) -> dict[str, Any]:
    """Return a configuration as a dict; fairseq keeps a Namespace or a dict."""
    return vars(config) if isinstance(config, argparse.Namespace) else config


def average(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the newest checkpoint with averaged weights and without the optimizer's state.

    Sums are in float64; half precision becomes fp32, because an average has more digits. Equal
    weights stay the same to the bit. Weights that share memory, such as tied embeddings, still do.

    Args:
        states: checkpoints of one model, oldest first.

    Raises:
        UsageError: they are not of one model, or their integer tensors differ.
    """
    check_same_kind(states)
    means: dict[tuple[Any, ...], torch.Tensor] = {}
    model = {}
    for name, newest in states[-1]["model"].items():
        tensors = [state["model"][name] for state in states]
        key = tuple((tensor.data_ptr(), tensor.shape, tensor.stride()) for tensor in tensors)
        if key not in means or not newest.numel():
            means[key] = mean(name, tensors)
        model[name] = means[key]
    return states[-1] | {"model": model, "last_optimizer_state": None}


def mean(name: str, tensors: "Sequence[torch.Tensor]") -> "torch.Tensor":
    """Return the mean of one weight; see ``average``."""
    import torch

    if not tensors[0].is_floating_point():
        if any(not torch.equal(tensor, tensors[0]) for tensor in tensors):
            raise UsageError(f"{name} holds whole numbers, which differ between checkpoints")
        return tensors[0].clone()
    halves = (torch.float16, torch.bfloat16)
    dtype = torch.float32 if tensors[0].dtype in halves else tensors[0].dtype
    if all(torch.equal(tensor, tensors[0]) for tensor in tensors[1:]):
        return tensors[0].to(dtype, copy=True)
    total = torch.zeros_like(tensors[0], dtype=torch.float64)
    for tensor in tensors:
        total += tensor
    return (total / len(tensors)).to(dtype)


def repair(folder: Path) -> int:
    """Make ``checkpoint_last.pt`` the newest undamaged checkpoint; return its number of updates.

    fairseq writes one checkpoint under a temporary name and then copies it, in place, to
    checkpoint_best.pt and checkpoint_last.pt, so a killed run can leave a damaged or an old copy.
    Without a checkpoint, 0 is returned.

    Raises:
        UsageError: all checkpoints are damaged.
    """
    last = folder / "checkpoint_last.pt"
    updates, error = {}, None
    for path in sorted(folder.glob("checkpoint*.pt")):
        try:
            updates[path] = count_updates(read_state(path))
        except UsageError as broken:
            error = broken
            print(f"paradec train: not used: {path}", file=sys.stderr)
    if not updates:
        if error is not None:
            raise error
        return 0
    newest = max(updates, key=lambda path: updates[path])
    if updates.get(last, -1) < updates[newest]:
        with replacing(last) as partial:
            shutil.copyfile(newest, partial)
        print(f"paradec train: going on from {newest}", file=sys.stderr)
    return updates[newest]


def write_average(folder: Path, count: int, out: Path, flag: str = "--save-dir") -> None:
    """Average the last checkpoints of a run; the file is whole as soon as it is there.

    Args:
        folder: of the run.
        count: how many checkpoints.
        out: the file.
        flag: that names the file, for errors.

    Raises:
        UsageError: there is none, one cannot be read, they are not of one model, or the file cannot
            be written.
    """
    from ..plugin.files import saving

    states = last_checkpoints(folder, count)
    with saving(flag, out, average(states)):
        pass
    updates = ", ".join(str(count_updates(state)) for state in states)
    print(f"{len(states)} averaged, of updates {updates}", file=sys.stderr)
