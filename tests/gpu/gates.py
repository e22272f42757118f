"""What every method must keep to on a device, in every precision: scenes of the table's factors."""

import itertools
from collections import Counter
from collections.abc import Sequence

from support import exact
from support.builders import source_rows
from support.conformance import CASES, FACTORS, allowed, case, decoded, row_name, setting_of
from support.pairwise import Row, pairwise

#: Precision -> how far two tokens' log-probabilities may be from each other where outputs part:
#: random models with sharp attention make much of a rounding.
CLOSE = {"float32": 5e-4, "float16": 1.5, "bfloat16": 4.0}
#: How far log-probabilities may be from fairseq's. Both are rounded: in a scene in float32 one of
#: ours is 4.2e-4 from that of float64, and fairseq's 1.7e-4 on the other side.
ROUNDING = CLOSE | {"float32": 1e-3}

#: With a device every case has so many scenes in every precision.
SCENES = 3

NOTES = (
    "Judge: fairseq's own beam-1 search on the same device, in the same precision, TF32 off. Each"
    " sentence is decoded in a ragged batch and alone (`as alone`: to the same tokens).",
    "Ties: outputs that part from fairseq's at two log-probabilities that are close (float32: 5e-4,"
    " float16: 1.5, bfloat16: 4); where greedy's tokens are promised they part nowhere else.",
)


def rows(scenes_each: int) -> list[Row]:
    """Every case in every precision, in so many scenes each, by turns."""
    scenes = {name: levels for name, levels in FACTORS.items() if name not in ("case", "dtype")}
    turns = itertools.cycle(pairwise(scenes))
    found = []
    for chosen, dtype in itertools.product([*CASES, case("auto_fast")], CLOSE):
        fitting = (scene for scene in turns if allowed({"case": chosen} | scene))
        own = itertools.islice(fitting, scenes_each)
        found += [{"case": chosen, "dtype": dtype} | scene for scene in own]
    return found


def names(rows: Sequence[Row]) -> list[str]:
    """Return the names of rows; some rows are equal."""
    return [f"{row_name(row)}_{number}" for number, row in enumerate(rows)]


def hold(row: Row, device: str) -> Counter[str]:
    """Decode a row's batch, and each of its sentences alone; check and count."""
    setting = setting_of(row, device)
    sources, close = source_rows(setting.sample), CLOSE[row["dtype"]]
    together, alone = decoded(setting), [decoded(one)[0] for one in setting.alone()]
    assert all(exact.is_whole(hypo, device) for hypo in (*together, *alone))
    same = sum(a["tokens"].equal(b["tokens"]) for a, b in zip(together, alone, strict=True))
    ties = 0
    if setting.case.exact:
        judged = zip(setting.exact, sources, setting.prefixes, strict=True)
        for ours, (stock, source, prefix) in zip((*together, *alone), [*judged] * 2, strict=True):
            ties += exact.same_or_tie(
                setting.task,
                setting.models,
                setting.limits,
                ours,
                stock,
                source,
                prefix,
                close,
                ROUNDING[row["dtype"]],
            )
    assert row["dtype"] != "float32" or (ties <= 2 and same >= len(sources) - 1), (ties, same)
    return Counter({"sentences": len(sources), "ties": ties, "as alone": same})
