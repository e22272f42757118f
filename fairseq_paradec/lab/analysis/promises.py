"""Labels of outputs in benchmarks, reports and pages: exact, other dtype, relaxed, ..."""

from collections.abc import Mapping
from typing import Any

#: The fields of a record, or of a benchmark's system, on the origin of its output.
PROVENANCE = ("lossless", "engine", "engine_dtype", "model", "drafter")

#: The output of fairseq's greedy search. This promise can be broken, others cannot.
EXACT = "exact"
#: The same in a benchmark without fairseq, whose judge is our own greedy search.
AS_OURS = "= our greedy"
#: Promises that one other token breaks.
BREAKABLE = (EXACT, AS_OURS)
#: Exact in fp32, but decoded in a lower precision.
OTHER_DTYPE = "other dtype"
#: Sampled: the promise is the model's distribution, not an output.
SAMPLED = "sampled"
#: The method does not promise greedy search's output.
NONE = "none"
#: Older records lack the promise.
NOT_RECORDED = "not recorded"


def promise_of(record: Mapping[str, Any]) -> str:
    """Return the label of a record's output, by the fields that docs/trace.md describes."""
    lossless, dtype = record.get("lossless"), record.get("engine_dtype")
    if lossless is None or dtype is None:
        return NOT_RECORDED
    if record.get("sampling") is not None:
        return SAMPLED
    if not lossless:
        return NONE
    return EXACT if dtype in ("fp32", "fp64") else OTHER_DTYPE


def engine_of(record: Mapping[str, Any]) -> str:
    """Return the engine of a record's passes in words: ``torch, bf16, compiled``."""
    if record.get("engine") is None:
        return NOT_RECORDED
    parts = [str(record["engine"]), str(record.get("engine_dtype", NOT_RECORDED))]
    return ", ".join([*parts, *(["compiled"] if record.get("compiled") else [])])
