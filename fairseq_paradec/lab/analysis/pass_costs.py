"""The tables of paradec passes: the cost of a pass, its lower bound, and the cost of a sentence.

A pure function of the JSON document. Its samples are ``seconds[r][i]``: round r, repetition i.

The floor of a pass is a lower bound of its time: the larger of its reading and computing times.
Reading: the bytes of its weights, keys and values, at the bandwidth measured for as many bytes as a
decoder's pass in the dtype reads; they may be in a CPU cache. Computing: its products and
attention, at the best peak of all engines in the dtype. So engines of one dtype have one floor.
Distance = measured time / floor.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..data.samples import Rounds
from ..data.table import Cells, Column, Table, Value, column
from . import Fields

# Shorter floors are meaningless: a call alone takes longer.
LEAST = 1e-6
# The dtype of an engine whose name has none.
PLAIN = "fp32"
DTYPES = (PLAIN, "bf16", "fp16", "int8")
# A search in the loop of the drafting methods, where greedy search has none.
LOOPED = "pgj of 1 token"
MIB = 2**20


class Floor(NamedTuple):
    """The lower bounds of a pass's time, in seconds."""

    reading: float  # for weights, keys and values
    computing: float | None  # for products and attention; None where no peak was measured

    @property
    def seconds(self) -> float:
        """The larger of the two."""
        return max(self.reading, self.computing or 0.0)

    @property
    def by(self) -> str:
        """The name of the larger one."""
        return "reading" if self.seconds == self.reading else "computing"


def middle(seconds: Rounds) -> float:
    """Return the median of all samples."""
    return float(np.median(np.concatenate([np.asarray(times) for times in seconds])))


def quartiles(seconds: Rounds) -> tuple[float, float]:
    """Return the first and the third quartile of all samples."""
    low, high = np.percentile(np.concatenate([np.asarray(times) for times in seconds]), [25, 75])
    return float(low), float(high)


def dtype_of(engine: str) -> str:
    """Return an engine's dtype: ``bf16`` of ``torch-bf16``, ``fp32`` of ``native``."""
    last = engine.rpartition("-")[2]
    return last if last in DTYPES else PLAIN


def floor(document: Fields, engine: str, pieces: Sequence[Fields]) -> Floor:
    """Return the floor of some pieces of a pass."""
    (memory,) = (one for one in document["bandwidth"] if one["name"] == dtype_of(engine))
    bandwidth = memory["bytes"] / middle(memory["seconds"])
    peaks: dict[str, float] = {}
    for one in document["peak"]:
        rate = one["flops"] / middle(one["seconds"])
        peaks[one["dtype"]] = max(rate, peaks.get(one["dtype"], 0.0))
    reading = sum(piece["bytes"] + piece["cache_bytes"] for piece in pieces) / bandwidth
    if any(piece["flops"] and piece["dtype"] not in peaks for piece in pieces):
        return Floor(reading, None)
    computing = sum(piece["flops"] / peaks[piece["dtype"]] for piece in pieces if piece["flops"])
    return Floor(reading, computing)


#: Columns of several tables; a median has the quartiles as its ends.
DISTANCE = column("distance", unit="x", form=".2f")
FLOOR = column("floor_ms", "floor, ms", "ms")


def tables(document: Fields) -> list[Table]:
    """Return the tables of passes, made of their raw samples."""
    engines = document["setting"]["engines"]
    found = [_machine_table(document), _pass_table(document), _search_table(document)]
    found += [t for t in (_piece_table(document, engine) for engine in engines) if t.rows]
    if document["acceptance"] is not None:
        found.append(_estimate_table(document))
    return found


# ---- what was measured ----------------------------------------------------------------------


def _machine_table(document: Fields) -> Table:
    """The machine's peak bandwidth and compute."""
    rows: list[Cells] = []
    for one in document["bandwidth"]:
        what = "a large tensor" if one["name"] == "large" else f"a pass's weights, {one['name']}"
        size = f"{one['bytes'] / MIB:.4g} MiB"
        found = _rate(one, one["bytes"], "GB/s")
        rows.append({"what": f"reading: {what}", "size": size, **found})
    for one in document["peak"]:
        by = f", {one['engine']}" if "engine" in one else ""
        what, size = f"product of matrices: {one['dtype']}{by}", f"{one['flops'] / 1e9:.3g} GFLOP"
        rows.append({"what": what, "size": size, **_rate(one, one["flops"], "GFLOP/s")})
    notes = [
        "Reading: an fp32 tensor is summed, again and again. The second size and those after it "
        "are what a decoder's pass reads of weights: they may lie in a cache, and then a repeated "
        "pass has that bandwidth."
    ]
    return Table.of(rows, "The machine", notes)


def _rate(one: Fields, amount: float, unit: str) -> Cells:
    """Return billions a second of an amount: the median, and the quartiles."""
    fast, slow = quartiles(one["seconds"])
    median, low, high = (amount / s / 1e9 for s in (middle(one["seconds"]), slow, fast))
    return {column("rate", "median", form=".1f"): Value(median, low, high), "unit": unit}


def _pass_table(document: Fields) -> Table:
    """Every pass with its floor and its distance."""
    rows = []
    kinds = list(dict.fromkeys((one["part"], one["chunk"]) for one in document["passes"]))
    single = {
        one["engine"]: middle(one["seconds"])
        for one in document["passes"]
        if (one["part"], one["chunk"]) == ("decoder", 1)
    }
    # Engines side by side.
    for one in sorted(document["passes"], key=lambda one: kinds.index((one["part"], one["chunk"]))):
        least = floor(document, one["engine"], one["pieces"])
        read = sum(piece["bytes"] + piece["cache_bytes"] for piece in one["pieces"])
        rows.append(
            {
                "pass": pass_name(one),
                "engine": one["engine"],
                "ms": _spread(one["seconds"]),
                column("of_1_token", unit="x", form=".2f"): _times(
                    middle(one["seconds"]), single.get(one["engine"], 0.0)
                )
                if one["part"] == "decoder"
                else None,
                "MiB_read": round(read / MIB, 2),
                "MFLOP": round(sum(piece["flops"] for piece in one["pieces"]) / 1e6, 1),
                FLOOR: _ms(least.seconds),
                "floor_by": least.by,
                DISTANCE: _times(middle(one["seconds"]), least.seconds),
            }
        )
    notes = [
        "Floor: the larger of what is read (weights, keys and values) over the bandwidth for as "
        "many bytes as a pass in the dtype reads, and FLOPs over the best product of the dtype "
        "above. Distance: measured over floor. Of 1 token: over the same engine's pass of 1 token.",
        "A decoder's pass: a chunk, and the choice of a token with its log-probability at every "
        "position. A drafter's: new tokens and masks, and a token for every mask. Heads: from one "
        "state of each sentence to a token for every head.",
    ]
    if any(one["part"] == "token drafter" for one in document["passes"]):
        notes.append("Token drafter: of assisted decoding; a pass for each token of a draft.")
    if any(floor(document, p["engine"], p["pieces"]).computing is None for p in document["passes"]):
        notes.append("Where a peak could not be measured, the floor is by reading alone.")
    return Table.of(rows, "Passes", notes)


def pass_name(one: Fields) -> str:
    """Name a pass, for example ``decoder, 5 tokens``."""
    if one["part"] == "decoder":
        return f"decoder, {one['chunk']} token{'s' if one['chunk'] > 1 else ''}"
    if one["part"] == "drafter":
        return f"drafter, {one['chunk']} masks"
    if one["part"] == "token drafter":
        return "token drafter, 1 token"
    if one["part"] == "heads":
        return f"heads, {one['chunk']} tokens"
    return str(one["part"])


def _piece_table(document: Fields, engine: str) -> Table:
    """A decoder's passes by piece, for one engine; no rows if pieces were not timed."""
    passes = [
        one
        for one in document["passes"]
        if one["part"] == "decoder" and one["engine"] == engine and "seconds" in one["pieces"][0]
    ]
    names = [piece["name"] for piece in passes[0]["pieces"]] if passes else []
    rows: list[Cells] = [{"piece": name} for name in (*names, "other", "whole pass")]
    for one in passes:
        times = [middle(piece["seconds"]) for piece in one["pieces"]]
        floors = [floor(document, engine, [piece]).seconds for piece in one["pieces"]]
        whole = middle(one["seconds"])
        times += [whole - sum(times), whole]
        floors += [0.0, floor(document, engine, one["pieces"]).seconds]
        for row, seconds, least in zip(rows, times, floors, strict=True):
            ms, share, distance = _piece_columns(one["chunk"])
            row[ms], row[share] = _ms(seconds), round(100 * seconds / whole, 1)
            row[distance] = _times(seconds, least if least > LEAST else 0.0)
    notes = [
        "The number in front is the chunk's length in tokens. Each piece runs alone through the "
        "weights of all layers, the pieces in turn as in a pass. Self-attention writes the cache; "
        "residuals are nobody's. Distance: of a piece from its own floor; that of the whole pass "
        "is not a mean of these, for reading and computing overlap between pieces; `-`: below a "
        "microsecond.",
        "Other: what the pieces do not explain. It may be negative: pieces that run alone lose "
        "what a whole pass keeps in the nearest cache, and each is timed with its own call.",
    ]
    return Table.of(rows if passes else [], f"A decoder's pass by piece: {engine}", notes)


def _piece_columns(chunk: int) -> tuple[Column, Column, Column]:
    """Return the columns of a chunk in the table of pieces."""
    return (
        column(f"chunk_{chunk}_ms", f"{chunk}: ms", "ms"),
        column(f"chunk_{chunk}_share", f"{chunk}: %", "%"),
        column(f"chunk_{chunk}_distance", f"{chunk}: distance", "x", ".2f"),
    )


def _search_table(document: Fields) -> Table:
    """Whole searches, in milliseconds per token."""
    rows = []
    for one in document["searches"]:
        each, engine = middle(one["seconds"]) / one["passes"], one.get("engine", PLAIN)
        least = _one_token_floor(document, dtype_of(engine))
        loop = middle(one["loop_seconds"]) / one["passes"] if "loop_seconds" in one else None
        rows.append(
            {
                "decoder": one["name"],
                "engine": engine,
                "ms_per_token": _spread(one["seconds"], one["passes"]),
                column("loop_ms", "loop, ms", "ms"): None if loop is None else _ms(loop),
                column("floor_ms", "floor of a pass, ms", "ms"): None
                if least is None
                else _ms(least),
                DISTANCE: None if least is None else _times(each, least),
                column("encoder_ms", "encoder, ms", "ms"): _ms(middle(one["encoder_seconds"])),
            }
        )
    tokens = document["searches"][0]["passes"] - 1
    notes = [
        f"Whole searches, forced to {tokens} tokens and </s>; without the encoder, divided by "
        "passes, which is one a token. Loop: the time outside encoder and passes. Floor: that of a "
        "decoder's pass of 1 token in the dtype; a beam of 5 reads as much, and computes more."
    ]
    if any(one["name"] == LOOPED for one in document["searches"]):
        notes.append(f"{LOOPED}: in the loop of the drafting methods; native greedy has none.")
    if any(one["name"].startswith("CTranslate2") for one in document["searches"]):
        notes.append(
            "CTranslate2's: the difference between outputs of two lengths, by the tokens between "
            "them, everything it does for a token; what is left counts as its encoder's."
        )
    return Table.of(rows, "Searches: milliseconds a token", notes)


def _one_token_floor(document: Fields, dtype: str) -> float | None:
    """Return the floor of a decoder's pass of 1 token in a dtype; None without such a pass."""
    found = [
        floor(document, one["engine"], one["pieces"]).seconds
        for one in document["passes"]
        if (one["part"], one["chunk"], dtype_of(one["engine"])) == ("decoder", 1, dtype)
    ]
    return found[0] if found else None


# ---- an estimate ----------------------------------------------------------------------------


def loop_seconds(document: Fields, engine: str, drafts: bool = True) -> float | None:
    """Return the loop's seconds per pass of an engine; None if no search of it was timed.

    Args:
        document: with searches.
        engine: of the search.
        drafts: whether to take the loop of the drafting methods, or that of greedy search.
    """
    found = [
        one
        for one in document["searches"]
        if "loop_seconds" in one and one.get("engine", engine) == engine
    ]
    found.sort(key=lambda one: (one["name"] == LOOPED) != drafts)
    return middle(found[0]["loop_seconds"]) / found[0]["passes"] if found else None


def _between(document: Fields, part: str, engine: str, chunk: int) -> tuple[float | None, float]:
    """Return seconds and floor of a pass, interpolated; None outside the measured chunks."""
    found = sorted(
        (one for one in document["passes"] if (one["part"], one["engine"]) == (part, engine)),
        key=lambda one: one["chunk"],
    )
    chunks = [one["chunk"] for one in found]
    if not chunks or not chunks[0] <= chunk <= chunks[-1]:
        return None, 0.0
    seconds = np.interp(chunk, chunks, [middle(one["seconds"]) for one in found])
    floors = [floor(document, engine, one["pieces"]).seconds for one in found]
    return float(seconds), float(np.interp(chunk, chunks, floors))


def sentence(document: Fields, engine: str, system: Fields) -> tuple[float, float] | None:
    """Estimate the seconds that a sentence takes, and their floor.

    Returns:
        None where a pass was not measured.
    """
    cycle, least = 0.0, 0.0
    passes = [("decoder", "encoder", system["chunk"], 1)]
    if system["masks"] is not None:
        passes.append(("drafter", "drafter's encoder", system["masks"], 1))
    if "steps" in system:
        passes.append(("token drafter", "token drafter's encoder", 1, system["steps"]))
    for part, _, chunk, times in passes:
        one, one_floor = _between(document, part, engine, chunk)
        if one is None:
            return None
        cycle, least = cycle + times * one, least + times * one_floor
    cycle += loop_seconds(document, engine, system["chunk"] > 1) or 0.0
    encoders = [encoder for _, encoder, _, _ in passes]
    before = [p for p in document["passes"] if p["engine"] == engine and p["part"] in encoders]
    seconds = sum(middle(p["seconds"]) for p in before)
    floors = sum(floor(document, engine, p["pieces"]).seconds for p in before)
    return seconds + system["passes"] * cycle, floors + system["passes"] * least


def _estimate_table(document: Fields) -> Table:
    """Estimated seconds per sentence, with the acceptance of another pair of models."""
    given = document["acceptance"]
    baselines: dict[str, float] = {}
    rows: list[Cells] = []
    missing = []
    for system in given["systems"]:
        searches = [one for one in document["searches"] if one["name"] == system["search"]]
        for one in searches:
            each = middle(one["seconds"]) / one["passes"]
            seconds = middle(one["encoder_seconds"]) + system["passes"] * each
            baselines[system["search"]] = seconds
            rows.append(_estimate_row("fairseq", system, seconds, None))
    for engine in document["setting"]["engines"]:
        for system in given["systems"]:
            if system["search"]:
                continue
            found = sentence(document, engine, system)
            if found is None:
                missing.append(f"`{system['label']}` in {engine}: its passes were not measured")
            else:
                rows.append(_estimate_row(engine, system, *found))
    for row in rows:
        for name, seconds in baselines.items():
            key = f"speed_of_{name.replace(' ', '_')}"
            least = row["ms_per_sentence"]
            assert isinstance(least, float)
            row[column(key, f"speed of {name}'s", "x", ".2f")] = _times(1000 * seconds, least)
    looped = any(one["name"] == LOOPED for one in document["searches"])
    notes = [
        f"An ESTIMATE, nothing here was decoded: passes per sentence are those of {given['file']} "
        "(another pair of models, or another run), times are this machine's. How much of a draft "
        "holds is not known for the models measured here.",
        "Of this package: encoder + passes × (drafting + verifying + loop), verifying a chunk of "
        "k + 1 tokens, between measured chunks by a straight line; of fairseq's: encoder + passes "
        "× time a token. Batching and detokenising are in neither. The loop is that of "
        + (f"greedy, or of {LOOPED}." if looped else "greedy."),
        *(f"Not estimated: {left}." for left in (*given["left_out"], *missing)),
    ]
    if any("steps" in system for system in given["systems"]):
        notes.append(
            "assisted: k passes of the token drafter and k + 1 verified tokens, as if no draft "
            "ended earlier; the loop around the drafter's passes is not counted."
        )
    if given["assumed"]:
        names = ", ".join(f"`{name}`" for name in given["assumed"])
        notes.append(f"k = {given['block_size']} is assumed of {names}: the file does not say it.")
    return Table.of(rows, "Estimate: milliseconds a sentence", notes)


def _estimate_row(engine: str, system: Fields, seconds: float, least: float | None) -> Cells:
    return {
        "decoder": system["label"],
        "engine": engine,
        "passes_per_sentence": round(system["passes"], 2),
        "ms_per_sentence": _ms(seconds),
        FLOOR: None if least is None else _ms(least),
        DISTANCE: None if least is None else _times(seconds, least),
    }


def _ms(seconds: float) -> float:
    """Return milliseconds, to a tenth of a microsecond."""
    return round(1000 * seconds, 4)


def _spread(seconds: Rounds, passes: int = 1) -> Value:
    """Return the milliseconds of a pass: the median, and the quartiles."""
    median, low, high = (_ms(one / passes) for one in (middle(seconds), *quartiles(seconds)))
    return Value(median, low, high)


def _times(seconds: float, least: float) -> float | None:
    """Return a ratio; None where there is none."""
    return seconds / least if least > 0 else None
