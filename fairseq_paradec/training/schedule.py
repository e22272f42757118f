"""How long a run is in updates, and the learning rate's schedule, which follows that."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UsageError, option_error
from .settings import Flags

#: A batch has so many sentences, or a multiple (fairseq's --required-batch-size-multiple).
MULTIPLE = 8


def fit(flags: Mapping[str, object], updates: int, share: float) -> Flags:
    """Return a run's flags of the schedule: warm-up, and where a falling rate ends."""
    most = max(1, int(share * updates))
    fitted: Flags = {"warmup-updates": min(int(str(flags["warmup-updates"])), most)}
    if flags["lr-scheduler"] == "polynomial_decay":
        fitted["total-num-update"] = updates
    return fitted


def check(warmup: int, updates: int, other: str, scheduler: object = None) -> None:
    """Refuse a warm-up that does not end before the run, or that fairseq divides by."""
    if warmup == 0 and scheduler == "inverse_sqrt":
        allowed = "a whole number from 1 up (0 with --lr-scheduler polynomial_decay)"
        raise option_error("--warmup-updates", warmup, allowed)
    if warmup >= updates:
        allowed = (
            f"fewer than the {updates} updates of the run ({other}), as the rate would never reach "
            "--lr; without it, the warm-up follows the length"
        )
        raise option_error("--warmup-updates", warmup, allowed)


def updates_an_epoch(
    data: Path,
    tokens: int,
    pieces: int,
    processes: int,
    sentences: int | None = None,
    skips: bool = False,
) -> int:
    """Return the number of updates of an epoch, nearly: fairseq breaks ties of length by chance.

    Args:
        data: fairseq's data folder.
        tokens: at most in a piece (--max-tokens).
        pieces: of a batch, of each process (--update-freq).
        processes: that share the pieces.
        sentences: at most in a piece (--batch-size).
        skips: sentences that do not fit are left out.

    Raises:
        UsageError: DATA has no training set, files that cannot be read, or a sentence that does
            not fit.
    """
    import numpy as np
    from fairseq.data import data_utils

    pair = languages(data)
    files = [sorted(data.glob(f"train*.{'-'.join(pair)}.{side}.idx")) for side in pair]
    source, target = (np.concatenate([_sizes(file) for file in side]) for side in files)
    order = np.lexsort((target, source))
    longest = np.maximum(source, target).astype(np.int64)[order]
    fits = longest <= tokens
    if not (fits.any() if skips else fits.all()):
        allowed = f"{longest.max()} at least: DATA's longest sentence has so many tokens"
        raise option_error("--max-tokens", tokens, allowed)
    batches = data_utils.batch_by_size(
        order[fits], None, longest[fits], tokens, sentences, MULTIPLE
    )
    return max(1, -(-len(batches) // (processes * pieces)))


def languages(data: Path) -> tuple[str, str]:
    """Return the languages of the first training set by name.

    Raises:
        UsageError: there is none.
    """
    for file in sorted(data.glob("train.*-*.*.idx")):
        source, _, target = file.name.split(".")[1].partition("-")
        return source, target
    raise UsageError(f"DATA: got '{data}', which has no training set (train.*.idx)")


def _sizes(file: Path) -> Any:
    """Return the tokens of each sentence of a file of fairseq-preprocess."""
    from fairseq.data import data_utils

    try:
        dataset = data_utils.load_indexed_dataset(str(file.with_suffix("")), None)
        sizes = dataset.sizes
    except Exception as error:  # fairseq asserts, or gives None
        raise UsageError(f"DATA: got '{file.parent}', whose {file.name} cannot be read") from error
    return sizes.copy()  # the file is closed with the data
