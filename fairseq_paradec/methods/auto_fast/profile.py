"""``--speed-profile``: auto_fast's measurements in a JSON file, for later runs on the machine.

A file holds a list of profiles, each for one machine, one set of models and one set of candidates.
A profile holds the measurements of each bin of batch size and source length.
"""

import hashlib
import json
import logging
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ...decoding.provenance import processor, versions
from ...errors import option_error
from ...files import replacing
from ...model.model import Model
from ...threads import num_threads

logger = logging.getLogger(__name__)

SCHEMA, VERSION = "fairseq_paradec.speed_profile", 2
FLAG = "--speed-profile"
# The parts of a profile's key; a profile is used only if all are equal.
KEYS = ("machine", "models", "drafter", "flags")


class Bin(NamedTuple):
    """A class of batches of about the same size and source length."""

    sentences: int  # the largest batch size, a power of two; the smallest is more than half of it
    source: int  # the largest length of the longest source: 8, 12, 16, 24, 32, 48, ... tokens

    def __str__(self) -> str:
        shorter = (n for n in range(self.source - 1, 0, -1) if _edge(n) < self.source)
        sources = f"{next(shorter, 0) + 1}-{self.source}"
        return f"batch {_span(self.sentences)}, sources of {sources} tokens"


@dataclass
class Measured:
    """The measurements of one bin, by candidate."""

    batches: int  # the number of measured batches
    seconds: float  # the time of all candidates other than greedy search
    # a candidate's time over greedy's for the same batch: the mean over batches plus its standard
    # error
    ratios: dict[str, float]
    ms: dict[str, float]  # the 90th percentile of a candidate's milliseconds per sentence
    pass_seconds: float  # greedy search's seconds per pass
    tokens: dict[str, float]  # that a candidate's pass writes


class SpeedProfile:
    """A profile file, which need not exist.

    Raises:
        UsageError: the file is damaged or of another kind.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.key: dict[str, Any] = {}
        self._failed = False  # to be written; it was said
        self._entries = _read(path)

    def open(self, key: dict[str, Any]) -> dict[Bin, Measured]:
        """Return the file's bins for this key; warn if the file has other keys only."""
        self.key = json.loads(json.dumps(key))
        own = self._own(self._entries)
        if own is not None:
            return _bins(own)
        if self._entries:
            differ = [[n for n in KEYS if entry[n] != self.key[n]] for entry in self._entries]
            nearest = min(differ, key=lambda names: len(names))
            logger.warning(
                "%s %s: what it holds was measured with another %s; measuring anew, and keeping "
                "both",
                FLAG,
                self.path,
                ", ".join(nearest),
            )
        return {}

    def save(self, bins: dict[Bin, Measured]) -> None:
        """Add measurements to the file, by an atomic replacement.

        If the file cannot be written, one warning is logged and decoding continues.
        """
        entries = _read(self.path)  # another process may have added to it
        own = self._own(entries)
        if own is None:
            own = self.key | {"bins": []}
            entries.append(own)
        own["bins"] = [
            {**where._asdict(), **asdict(measured)}
            for where, measured in sorted((_bins(own) | bins).items())
        ]
        document = {"schema": SCHEMA, "version": VERSION, "profiles": entries}
        try:
            with replacing(Path(self.path), shared=True) as part:
                part.write_text(json.dumps(document, indent=1, allow_nan=False), "utf-8")
        except OSError as error:
            if not self._failed:
                logger.warning("%s %s: cannot be written (%s)", FLAG, self.path, error.strerror)
            self._failed = True

    def _own(self, entries: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
        """Return the profile of the key, or None."""
        return next((e for e in entries if all(e[n] == self.key[n] for n in KEYS)), None)


def this_machine(device: str) -> dict[str, Any]:
    """Return the machine's part of the key: processor, cores, threads, torch, device."""
    name = device
    if device != "cpu":
        import torch

        name = torch.cuda.get_device_name(device)
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": num_threads(),
        "torch": versions()["torch"],
        "device": name,
    }


def fingerprint(model: Any) -> dict[str, Any]:
    """Return a model's part of the key: its class, size, dtype and a digest.

    That of a module covers names and shapes, and the first 8 values of each parameter.
    """
    if isinstance(model, Model):
        return {
            "kind": model.architecture.kind,
            "parameters": sum(math.prod(shape) for shape in model.architecture.shapes().values()),
            "dtype": "float32",
            "digest": model.hash,
        }
    parameters = list(model.named_parameters())
    digest = hashlib.sha256()
    for name, weight in parameters:
        digest.update(f"{name} {tuple(weight.shape)}\n".encode())
        few = weight.detach().reshape(-1)[:8].float().cpu()
        digest.update(few.numpy().tobytes())
    return {
        "kind": type(model).__name__,
        "parameters": sum(weight.numel() for _, weight in parameters),
        "dtype": str(parameters[0][1].dtype).removeprefix("torch."),
        "digest": digest.hexdigest()[:16],
    }


def _read(path: str) -> list[dict[str, Any]]:
    """Read a file's profiles; an empty list if there is no file.

    Raises:
        UsageError: the file is damaged or of another kind.
    """
    if not os.path.exists(path) or (os.path.isfile(path) and os.path.getsize(path) == 0):
        return []
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        if document["schema"] != SCHEMA or document["version"] != VERSION:
            raise ValueError("another schema or version")
        entries: list[dict[str, Any]] = document["profiles"]
        for entry in entries:
            if any(name not in entry for name in KEYS):
                raise ValueError("a profile that does not say what it is for")
            names = set(entry["flags"]["candidates"])
            if not all(names.issuperset(measured.ratios) for measured in _bins(entry).values()):
                raise ValueError("a bin with other candidates than the profile's")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise option_error(
            FLAG,
            path,
            f"a new file, or one that this flag wrote; this is neither ({type(error).__name__}: "
            f"{error})",
        ) from error
    return entries


def _bins(entry: dict[str, Any]) -> dict[Bin, Measured]:
    """Read the bins of a profile.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: the profile is damaged.
    """
    bins, names = {}, entry["flags"]["candidates"]
    base = "greedy" if "greedy" in names else names[0]
    for stored in entry["bins"]:
        ratios, ms, tokens = (_numbers(stored[name]) for name in ("ratios", "ms", "tokens"))
        if base not in ratios or not ratios.keys() == ms.keys() == tokens.keys():
            raise ValueError("a bin whose candidates do not agree")
        where = Bin(int(stored["sentences"]), int(stored["source"]))
        per_pass = _numbers({"": stored["pass_seconds"]})[""]
        batches, seconds = int(stored["batches"]), float(stored["seconds"])
        bins[where] = Measured(batches, seconds, ratios, ms, per_pass, tokens)
    return bins


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    """Read numbers by name; each must be finite and above 0."""
    numbers = {str(name): float(value) for name, value in values.items()}
    if not all(0 < number < math.inf for number in numbers.values()):
        raise ValueError("a time that is not a number above 0")
    return numbers


def _span(most: int) -> str:
    """Return a bin's range of batch sizes as text: 1, 2, 3-4, 5-8, ..."""
    return str(most) if most <= 2 else f"{most // 2 + 1}-{most}"


def bin_of(sources: Iterable[Sequence[int]]) -> Bin:
    """Return the bin of a batch, by its sources."""
    lengths = [len(source) for source in sources]
    return Bin(_power(len(lengths)), _edge(max(lengths)))


def _edge(number: int) -> int:
    """Return the smallest of 8, 12, 16, 24, 32, 48, ... that is at least ``number``."""
    power = max(8, _power(number))
    return power * 3 // 4 if power > 8 and number <= power * 3 // 4 else power


def _power(number: int) -> int:
    """Return the smallest power of two that is at least ``number``."""
    return 1 << max(0, number - 1).bit_length()
