"""What a preset means for an architecture, by presets.toml."""

import fnmatch
import functools
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Values of flags of fairseq-train; True is a switch.
Flags = dict[str, Any]

_OWN_SIZE = re.compile("_(tiny|iwslt|big)$")


@dataclass
class Recipe:
    """How an architecture is trained; presets.toml explains the names."""

    flags: Flags  # of fairseq-train, without ``--``
    size: Flags  # of the model, by fairseq's names without the side
    average: int
    warmup_share: float
    epochs: int = 0
    updates: int = 0
    batch: int = 0
    piece: int = 0
    start: str | None = None
    started_by: str = ""
    needs_start: bool = False
    size_of_start: bool = False
    own_sizes: bool = False
    own_size: bool = field(init=False, default=False)  # the architecture's name is its size

    def put(self, table: Mapping[str, Any], conditions: Collection[str]) -> None:
        """Put a table on top.

        Args:
            table: of presets.toml; tables in it that are presets' do not count.
            conditions: those that hold.
        """
        if "epochs" in table or "updates" in table:
            self.epochs = self.updates = 0
        for name, value in table.items():
            if name == "flags":
                self.flags |= value
            elif name != "when" and name in self.__dataclass_fields__:
                setattr(self, name, value)
        for condition, more in table.get("when", {}).items():
            if condition in conditions:
                self.put(more, conditions)

    @property
    def length(self) -> tuple[str, int]:
        """``epochs`` or ``updates``, and how many."""
        return ("epochs", self.epochs) if self.epochs else ("updates", self.updates)


@functools.cache
def data() -> dict[str, Any]:
    """Return what presets.toml says."""
    return tomllib.loads(Path(__file__).with_name("presets.toml").read_text("utf-8"))


def words(flags: Flags) -> list[str]:
    """Return flags as words of a command."""
    return [
        word
        for name, value in flags.items()
        for word in (f"--{name}", *([] if value is True else [str(value)]))
    ]


def kind_of(arch: str) -> str:
    """Return the kind of an architecture."""
    kinds = data()["kinds"].items()
    return next(
        k for k, t in kinds if any(fnmatch.fnmatch(arch, pattern) for pattern in t["archs"])
    )


def start_of(arch: str) -> str | None:
    """Return the flag that ``--start-from`` stands for, without ``--``; None: there is none."""
    named = [table.get("start") for table in _kinds(kind_of(arch))]
    return next((flag for flag in reversed(named) if flag), None)


def recipe_of(arch: str, preset: str, conditions: Collection[str]) -> Recipe:
    """Return how an architecture is trained."""
    of_preset, share = data()["presets"][preset], data()["schedule"]["warmup_share"]
    recipe = Recipe({}, of_preset["size"], of_preset["average"], share)
    for table in _tables(kind_of(arch), preset):
        recipe.put(table, conditions)
    recipe.flags = {name: value for name, value in recipe.flags.items() if value is not False}
    recipe.own_size = recipe.own_sizes and _OWN_SIZE.search(arch) is not None
    return recipe


def _kinds(name: str) -> list[dict[str, Any]]:
    """Return a kind and those that it is like, the first of these first."""
    table = data()["kinds"][name]
    return [*(_kinds(table["like"]) if "like" in table else []), table]


def _tables(kind: str, preset: str) -> Iterator[Mapping[str, Any]]:
    """Yield the tables that count, in the order in which they do."""
    yield data()["common"]
    for table in _kinds(kind):
        yield table
        name = preset
        while name not in table and "like" not in table:
            name = data()["presets"][name]["like"]
        yield table.get(name, {})
