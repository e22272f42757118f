"""What fairseq-train logs as JSON: how far a run is, and its curve."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..files import replacing

_LINE = re.compile(r"\| INFO \| (\w+) \| (\{.*\})\s*$")

#: What is drawn beside the loss, if it is logged.
QUALITY = ("accepted", "bleu")

#: Curves by name, each by the number of updates.
Curves = dict[str, dict[int, float]]


def read_curves(lines: Iterable[str]) -> Curves:
    """Return what was logged: ``train loss``, ``valid loss``, ``valid bleu``, ...

    Updates that were made again, after a kill, count once.
    """
    curves: Curves = {}
    for line in lines:
        match = _LINE.search(line)
        if not match:
            continue
        tag, values = match[1], json.loads(match[2])
        if tag == "train_inner":
            _add(curves, "train loss", values.get("num_updates"), values.get("loss"))
        elif tag != "train":
            for name in ("loss", *QUALITY):
                updates = values.get(f"{tag}_num_updates")
                _add(curves, f"{tag} {name}", updates, values.get(f"{tag}_{name}"))
    return curves


def _add(curves: Curves, name: str, updates: Any, value: Any) -> None:
    """Add a point, if it is one."""
    if updates is not None and value is not None:
        curves.setdefault(name, {})[int(updates)] = float(value)


class Follower:
    """Reads what a log gets from now on, and estimates once how long the rest takes."""

    #: So many updates are timed.
    TIMED = 20

    def __init__(self, path: Path, updates: int) -> None:
        self.path, self.updates = path, updates
        self.place = path.stat().st_size
        self.first: tuple[int, float] | None = None
        self.said = False

    def look(self, now: float) -> str | None:
        """Read on; return the estimate, in words, as soon as enough updates are made."""
        with self.path.open("rb") as stream:
            stream.seek(self.place)
            text = stream.read()
        whole = text[: text.rfind(b"\n") + 1]
        self.place += len(whole)
        done = max(
            read_curves(whole.decode("utf-8", "replace").splitlines()).get("train loss", {0: 0.0})
        )
        if done and self.first is None:
            self.first = (done, now)
        if self.said or self.first is None or done - self.first[0] < self.TIMED:
            return None
        self.said = True
        an_update = (now - self.first[1]) / (done - self.first[0])
        left = in_words(an_update * (self.updates - done))
        return f"{an_update:.2g} s an update: about {left} for the {self.updates - done} to come"


def in_words(seconds: float) -> str:
    """Return a time in seconds, minutes or hours."""
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min")):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 3600:.1f} h"


def draw(log: Path, out: Path) -> bool:
    """Draw a run's curves; return whether there is something to draw, and matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    with log.open(encoding="utf-8", errors="replace") as stream:
        curves = read_curves(stream)
    if not curves:
        return False
    figure = Figure(figsize=(7, 4), layout="constrained")
    left = figure.subplots()
    right = None
    for number, (name, points) in enumerate(sorted(curves.items())):
        axes, style = left, "-"
        if name.split()[-1] in QUALITY:
            axes, style = right or left.twinx(), "--"
            right = axes
            right.set_ylabel(name)
        updates = sorted(points)
        marker = "." if len(updates) < 50 else None
        values = [points[update] for update in updates]
        axes.plot(updates, values, style, color=f"C{number}", marker=marker, label=name)
    left.set_xlabel("updates")
    left.set_ylabel("loss")
    figure.legend(loc="outside upper center", ncols=len(curves))
    with replacing(out) as partial:
        figure.savefig(partial, format="png", dpi=120)
    return True
