"""Parts of fairseq's batches."""

from collections.abc import Sequence
from typing import Any


def select_rows(sample: dict[str, Any], rows: Sequence[int], pad: int) -> dict[str, Any]:
    """Make a smaller batch of some rows.

    Args:
        sample: fairseq's batch, with ``net_input.src_tokens`` B×S.
        rows: indices of the rows, in the order of the new batch.
        pad: the padding symbol; columns of padding only are cut off.

    Returns:
        A sample with ``net_input`` and, if the batch has them, source lengths, ``id``,
        ``drafts``, ``watches`` and ``ends``.
    """
    index = list(rows)
    src_tokens = sample["net_input"]["src_tokens"][index]
    used = (src_tokens != pad).any(0)  # S
    part: dict[str, Any] = {"net_input": {"src_tokens": src_tokens[:, used]}}
    if "src_lengths" in sample["net_input"]:
        part["net_input"]["src_lengths"] = sample["net_input"]["src_lengths"][index]
    if "id" in sample:
        part["id"] = sample["id"][index]
    for name in ("drafts", "watches", "ends"):
        if name in sample:
            part[name] = [sample[name][row] for row in index]
    return part
