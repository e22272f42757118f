"""Timed rounds: on an idle machine, all that is compared in turns."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from ..errors import option_error
from . import machine

# How often a round is repeated because others used the machine meanwhile.
AGAIN = 3

R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")


def now(device: str = "cpu") -> float:
    """Return the time, in seconds, once the device has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def check_device(device: str) -> None:
    """Refuse ``--device cuda`` where there is none.

    Raises:
        UsageError: torch finds no CUDA device.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise option_error("--device", "cuda", "cpu: torch finds no CUDA device")


def undisturbed(work: Callable[[], R], busy: bool) -> tuple[R, float | None]:
    """Work while the machine is idle; again, a few times, if others used it meanwhile.

    Args:
        work: a round.
        busy: work though others use the machine.

    Returns:
        What the work gave, and how many cores others used; None if not to be known.

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
    """Do each item by all that is compared before the next item, each time in another order.

    What one leaves behind (in caches) is then not always there for the same other one.

    Args:
        compared: the decoders, for example.
        items: what each of them works on.
        turn: the round's number; it decides the orders.
        work: one of the items by one of the compared.

    Returns:
        Of each of the compared, what the work gave, by item.
    """
    order, found = random.Random(turn), [[] for _ in compared]  # type: ignore[var-annotated]
    for item in items:
        for place in order.sample(range(len(compared)), len(compared)):
            found[place].append(work(compared[place], item))
    return found


def others_used(used: Sequence[float | None], busy: bool) -> str:
    """Say for a note how many cores others used at most."""
    idle = "not checked (--busy), " if busy else ""
    known = [one for one in used if one is not None]
    return f"others: {idle}{max(known) if known else 'unknown'} cores at most"
