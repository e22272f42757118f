"""Timed rounds on an idle machine, in which the compared systems alternate."""

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from tqdm import tqdm

from ..data.journal import Journal
from . import machine

# The number of repetitions of a round during which other processes used the machine.
AGAIN = 3

R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")


def now(device: str = "cpu") -> float:
    """Return the time in seconds, after all work on the device is done."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
    return time.perf_counter()


def undisturbed(work: Callable[[], R], busy: bool) -> tuple[R, float | None]:
    """Run a round on an idle machine; repeat it a few times if others used the machine meanwhile.

    Args:
        work: a round.
        busy: also run on a busy machine, and do not repeat.

    Returns:
        The result of the round, and the number of cores that others used; None if unknown.

    Raises:
        UsageError: the machine stays busy.
    """
    for _ in range(1 + AGAIN):
        if not busy:
            machine.wait_until_idle()
        others = machine.Others()
        result = work()
        used = others.cores()
        if busy or (used or 0) <= machine.BUSY_CORES:
            break
    else:
        machine.refuse_busy(used)
    return result, None if used is None else round(used, 3)


def in_turns(
    compared: Sequence[S], items: Sequence[T], turn: int, work: Callable[[S, T], R]
) -> list[list[R]]:
    """Process each item with all systems before the next item, each time in another order.

    So the CPU cache that one system leaves does not always serve the same other system.

    Returns:
        The results of each system, by item.
    """
    order, results = random.Random(turn), [[] for _ in compared]  # type: ignore[var-annotated]
    for item in items:
        for place in order.sample(range(len(compared)), len(compared)):
            results[place].append(work(compared[place], item))
    return results


def all_rounds(
    compared: Sequence[S],
    items: Sequence[T],
    count: int,
    busy: bool,
    work: Callable[[S, T], R],
    unit: str,
    journal: Journal | None = None,
    name: str = "round",
) -> tuple[list[list[list[R]]], list[float | None]]:
    """Run rounds, each on an idle machine, with a progress bar.

    Args:
        compared: what takes turns at each item.
        items: what is done in a round.
        count: of the rounds.
        busy: also run on a busy machine.
        work: of one of them at an item; its result can be JSON.
        unit: what the bar counts.
        journal: a round that it has is not run again; None: rounds are not kept.
        name: of these rounds in the journal.

    Returns:
        The results by round, system and item; and the cores that others used in each round.
    """
    by_round, used, kept = [], [], journal or Journal(None, {})
    total = count * len(compared) * len(items)
    with tqdm(total=total, unit=f" {unit}", leave=False, disable=None) as bar:

        def counted(system: S, item: T) -> R:
            bar.update()
            return work(system, item)

        for turn in range(count):
            key, whole = f"{name}/{turn}", partial(in_turns, compared, items, turn, counted)
            if key not in kept.entries:
                kept.put(key, undisturbed(whole, busy))
            results, cores = kept.entries[key]
            by_round.append(results)
            used.append(cores)
    return by_round, used


def others_used(used: Sequence[float | None], busy: bool) -> str:
    """Return a note with the largest number of cores that others used."""
    idle = "not checked (--busy), " if busy else ""
    known = [cores for cores in used if cores is not None]
    return f"others: {idle}{max(known) if known else 'unknown'} cores at most"
