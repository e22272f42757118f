"""The tables of paradec profile passes: a pass's cost, its lower bound, and a sentence's cost.

A pure function of the JSON document. Its samples are ``seconds[r][i]``: round r, repetition i.

The floor of a pass is a lower bound of its time: the larger of its reading and computing times.
Reading: the bytes of its weights, keys and values, at the bandwidth measured for as many bytes as a
decoder's pass in the dtype reads; they may be in a CPU cache. Computing: its products and
attention, at the best peak of all engines in the dtype. So engines of one dtype have one floor.
Distance = measured time / floor.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

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
    (memory,) = (read for read in document["bandwidth"] if read["name"] == dtype_of(engine))
    bandwidth = memory["bytes"] / middle(memory["seconds"])
    peaks: dict[str, float] = {}
    for product in document["peak"]:
        rate = product["flops"] / middle(product["seconds"])
        peaks[product["dtype"]] = max(rate, peaks.get(product["dtype"], 0.0))
    reading = sum(piece["bytes"] + piece["cache_bytes"] for piece in pieces) / bandwidth
    if any(piece["flops"] and piece["dtype"] not in peaks for piece in pieces):
        return Floor(reading, None)
    computing = sum(piece["flops"] / peaks[piece["dtype"]] for piece in pieces if piece["flops"])
    return Floor(reading, computing)


class Pass(NamedTuple):
    """A pass that was timed."""

    part: str  # of the models: ``decoder``, ``drafter's encoder`` and so on
    engine: str
    chunk: int | None  # tokens, masks or heads; None of an encoder
    times: Rounds
    seconds: float  # the median
    pieces: Sequence[Fields]
    floor: Floor

    @property
    def name(self) -> str:
        """For example ``decoder, 5 tokens``."""
        if self.chunk is None:
            return self.part
        unit = "mask" if self.part == "drafter" else "token"
        single = self.part in ("decoder", "token drafter") and self.chunk == 1
        return f"{self.part}, {self.chunk} {unit}{'' if single else 's'}"


def _passes(document: Fields, **wanted: Any) -> list[Pass]:
    """Return the passes with some facts, such as an ``engine``."""
    return [
        Pass(
            timed["part"],
            timed["engine"],
            timed["chunk"],
            timed["seconds"],
            middle(timed["seconds"]),
            timed["pieces"],
            floor(document, timed["engine"], timed["pieces"]),
        )
        for timed in document["passes"]
        if all(timed[name] == fact for name, fact in wanted.items())
    ]


#: Columns of several tables; a median has the quartiles as its ends.
DISTANCE = column("distance", unit="x", form=".2f")
FLOOR = column("floor_ms", "floor, ms", "ms")


def tables(document: Fields) -> list[Table]:
    """Return the tables of passes, made of their raw samples."""
    made = [_machine_table(document), _pass_table(document), _search_table(document)]
    pieces = [_piece_table(document, engine) for engine in document["setting"]["engines"]]
    made += [table for table in pieces if table.rows]
    return made if document["acceptance"] is None else [*made, _estimate_table(document)]


# ---- what was measured ----------------------------------------------------------------------


def _machine_table(document: Fields) -> Table:
    """The machine's peak bandwidth and compute."""
    rows: list[Cells] = []
    for read in document["bandwidth"]:
        name = read["name"]
        what = "a large tensor" if name == "large" else f"a pass's weights, {name}"
        rate = _rate(read, read["bytes"], "GB/s")
        rows.append({"what": f"reading: {what}", "size": f"{read['bytes'] / MIB:.4g} MiB", **rate})
    for product in document["peak"]:
        by = f", {product['engine']}" if "engine" in product else ""
        what, size = f"product of matrices: {product['dtype']}{by}", product["flops"]
        rate = _rate(product, size, "GFLOP/s")
        rows.append({"what": what, "size": f"{size / 1e9:.3g} GFLOP", **rate})
    notes = [
        "Reading: an fp32 tensor is summed, again and again. The second size and those after it "
        "are what a decoder's pass reads of weights: they may lie in a cache, and then a repeated "
        "pass has that bandwidth."
    ]
    return Table.of(rows, "The machine", notes)


def _rate(timed: Fields, amount: float, unit: str) -> Cells:
    """Return billions a second of an amount: the median, and the quartiles."""
    fast, slow = quartiles(timed["seconds"])
    median, low, high = (amount / s / 1e9 for s in (middle(timed["seconds"]), slow, fast))
    return {column("rate", "median", form=".1f"): Value(median, low, high), "unit": unit}


def _pass_table(document: Fields) -> Table:
    """Every pass with its floor and its distance, engines side by side."""
    passes = _passes(document)
    kinds = list(dict.fromkeys((timed.part, timed.chunk) for timed in passes))
    single = {timed.engine: timed.seconds for timed in _passes(document, part="decoder", chunk=1)}
    of_one_token = column("of_1_token", unit="x", form=".2f")
    rows: list[Cells] = []
    for timed in sorted(passes, key=lambda timed: kinds.index((timed.part, timed.chunk))):
        read = sum(piece["bytes"] + piece["cache_bytes"] for piece in timed.pieces)
        against = single.get(timed.engine, 0.0) if timed.part == "decoder" else 0.0
        rows.append(
            {
                "pass": timed.name,
                "engine": timed.engine,
                "ms": _spread(timed.times),
                of_one_token: _times(timed.seconds, against),
                "MiB_read": round(read / MIB, 2),
                "MFLOP": round(sum(piece["flops"] for piece in timed.pieces) / 1e6, 1),
                **_floored(timed.seconds, timed.floor.seconds, by=timed.floor.by),
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
    if any(timed.part == "token drafter" for timed in passes):
        notes.append("Token drafter: of assisted decoding; a pass for each token of a draft.")
    if any(timed.floor.computing is None for timed in passes):
        notes.append("Where a peak could not be measured, the floor is by reading alone.")
    return Table.of(rows, "Passes", notes)


def _piece_table(document: Fields, engine: str) -> Table:
    """A decoder's passes by piece, for one engine; no rows if pieces were not timed."""
    passes = [
        timed
        for timed in _passes(document, part="decoder", engine=engine)
        if "seconds" in timed.pieces[0]
    ]
    names = [piece["name"] for piece in passes[0].pieces] if passes else []
    rows: list[Cells] = [{"piece": name} for name in (*names, "other", "whole pass")]
    for timed in passes:
        chunk, whole = timed.chunk, timed.seconds
        ms = column(f"chunk_{chunk}_ms", f"{chunk}: ms", "ms")
        share = column(f"chunk_{chunk}_share", f"{chunk}: %", "%")
        distance = column(f"chunk_{chunk}_distance", f"{chunk}: distance", "x", ".2f")
        times = [middle(piece["seconds"]) for piece in timed.pieces]
        floors = [floor(document, engine, [piece]).seconds for piece in timed.pieces]
        times += [whole - sum(times), whole]
        floors += [0.0, timed.floor.seconds]
        for row, seconds, least in zip(rows, times, floors, strict=True):
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


def _search_table(document: Fields) -> Table:
    """Whole searches, in milliseconds per token."""
    searches = document["searches"]
    # The floor of a decoder's pass of 1 token, by dtype.
    singles = reversed(_passes(document, part="decoder", chunk=1))
    floors = {dtype_of(timed.engine): timed.floor.seconds for timed in singles}
    rows: list[Cells] = []
    for search in searches:
        engine, passes = search.get("engine", PLAIN), search["passes"]
        loop = middle(search["loop_seconds"]) / passes if "loop_seconds" in search else None
        least = floors.get(dtype_of(engine))
        each = middle(search["seconds"]) / passes
        rows.append(
            {
                "decoder": search["name"],
                "engine": engine,
                "ms_per_token": _spread(search["seconds"], passes),
                column("loop_ms", "loop, ms", "ms"): None if loop is None else _ms(loop),
                **_floored(each, least, column("floor_ms", "floor of a pass, ms", "ms")),
                column("encoder_ms", "encoder, ms", "ms"): _ms(middle(search["encoder_seconds"])),
            }
        )
    notes = [
        f"Whole searches, forced to {searches[0]['passes'] - 1} tokens and </s>; without the "
        "encoder, divided by passes, which is one a token. Loop: the time outside encoder and "
        "passes. Floor: that of a decoder's pass of 1 token in the dtype; a beam of 5 reads as "
        "much, and computes more."
    ]
    if any(search["name"] == LOOPED for search in searches):
        notes.append(f"{LOOPED}: in the loop of the drafting methods; native greedy has none.")
    if any(search["name"].startswith("CTranslate2") for search in searches):
        notes.append(
            "CTranslate2's: the difference between outputs of two lengths, by the tokens between "
            "them, everything it does for a token; what is left counts as its encoder's."
        )
    return Table.of(rows, "Searches: milliseconds a token", notes)


# ---- an estimate ----------------------------------------------------------------------------


def loop_seconds(document: Fields, engine: str, drafts: bool = True) -> float | None:
    """Return the loop's seconds per pass of an engine; None if no search of it was timed.

    Args:
        document: with searches.
        engine: of the search.
        drafts: whether to take the loop of the drafting methods, or that of greedy search.
    """
    searches = [
        search
        for search in document["searches"]
        if "loop_seconds" in search and search.get("engine", engine) == engine
    ]
    searches.sort(key=lambda search: (search["name"] == LOOPED) != drafts)
    return middle(searches[0]["loop_seconds"]) / searches[0]["passes"] if searches else None


def _between(document: Fields, part: str, engine: str, chunk: int) -> tuple[float, float] | None:
    """Return seconds and floor of a pass, interpolated; None outside the measured chunks."""
    passes = sorted(_passes(document, part=part, engine=engine), key=lambda timed: timed.chunk or 0)
    chunks = [timed.chunk or 0 for timed in passes]
    if not chunks or not chunks[0] <= chunk <= chunks[-1]:
        return None
    seconds = np.interp(chunk, chunks, [timed.seconds for timed in passes])
    floors = np.interp(chunk, chunks, [timed.floor.seconds for timed in passes])
    return float(seconds), float(floors)


def sentence(document: Fields, engine: str, system: Fields) -> tuple[float, float] | None:
    """Estimate the seconds that a sentence takes, and their floor.

    Returns:
        None where a pass was not measured.
    """
    passes = [("decoder", "encoder", system["chunk"], 1)]
    if system["masks"] is not None:
        passes.append(("drafter", "drafter's encoder", system["masks"], 1))
    if "steps" in system:
        passes.append(("token drafter", "token drafter's encoder", 1, system["steps"]))
    seconds = floors = cycle = least = 0.0
    for part, encoder, chunk, times in passes:
        of_pass = _between(document, part, engine, chunk)
        if of_pass is None:
            return None
        cycle, least = cycle + times * of_pass[0], least + times * of_pass[1]
        for timed in _passes(document, part=encoder, engine=engine):
            seconds, floors = seconds + timed.seconds, floors + timed.floor.seconds
    cycle += loop_seconds(document, engine, system["chunk"] > 1) or 0.0
    return seconds + system["passes"] * cycle, floors + system["passes"] * least


def _estimate_table(document: Fields) -> Table:
    """Estimated seconds per sentence, with the acceptance of another pair of models."""
    given = document["acceptance"]
    baselines: dict[str, float] = {}
    estimates: list[tuple[str, Fields, float, float | None]] = []
    missing = []
    for system in given["systems"]:
        for search in document["searches"]:
            if search["name"] == system["search"]:
                each = middle(search["seconds"]) / search["passes"]
                seconds = middle(search["encoder_seconds"]) + system["passes"] * each
                baselines[system["search"]] = seconds
                estimates.append(("fairseq", system, seconds, None))
    for engine in document["setting"]["engines"]:
        for system in given["systems"]:
            if system["search"]:
                continue
            estimate = sentence(document, engine, system)
            if estimate is None:
                missing.append(f"`{system['label']}` in {engine}: its passes were not measured")
            else:
                estimates.append((engine, system, *estimate))
    gains = {
        name: column(f"speed_of_{name.replace(' ', '_')}", f"speed of {name}'s", "x", ".2f")
        for name in baselines
    }
    rows: list[Cells] = [
        {
            "decoder": system["label"],
            "engine": engine,
            "passes_per_sentence": round(system["passes"], 2),
            "ms_per_sentence": _ms(seconds),
            **_floored(seconds, least),
            **{gains[name]: _times(1000 * baselines[name], _ms(seconds)) for name in baselines},
        }
        for engine, system, seconds, least in estimates
    ]
    looped = any(search["name"] == LOOPED for search in document["searches"])
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


# ---- cells ----------------------------------------------------------------------------------


def _floored(
    seconds: float, least: float | None, head: Column = FLOOR, by: str | None = None
) -> Cells:
    """Return a floor, what it is by, if that is said, and the distance from it."""
    cells: Cells = {head: None if least is None else _ms(least)}
    if by is not None:
        cells["floor_by"] = by
    return cells | {DISTANCE: None if least is None else _times(seconds, least)}


def _ms(seconds: float) -> float:
    """Return milliseconds, to a tenth of a microsecond."""
    return round(1000 * seconds, 4)


def _spread(seconds: Rounds, passes: int = 1) -> Value:
    """Return the milliseconds of a pass: the median, and the quartiles."""
    median, low, high = (_ms(of_all / passes) for of_all in (middle(seconds), *quartiles(seconds)))
    return Value(median, low, high)


def _times(seconds: float, least: float) -> float | None:
    """Return a ratio; None where there is none."""
    return seconds / least if least > 0 else None
