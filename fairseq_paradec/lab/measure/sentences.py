"""The sentences of a data folder as fairseq-preprocess wrote them, read by numpy alone."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import overload

import numpy as np
import numpy.typing as npt

from ...errors import UsageError, option_error
from ...files import language_pair
from ...model.dictionary import Dictionary

Numbers = npt.NDArray[np.int64]

#: By fairseq's code, the type of a file's numbers.
_TYPES = dict(zip((1, 2, 3, 4, 5, 8, 9, 10), "u1 i1 i2 i4 i8 u2 u4 u8".split(), strict=True))
#: How an index begins: sign, version, code of the type, number of sentences. The old one also has
#: the bytes of a number before the last, and the number of sizes behind it.
_HEAD, _OLD_HEAD = struct.Struct("<9sQBQ"), struct.Struct("<8sQQQQQ")
_SIGN, _OLD_SIGN = b"MMIDIDX\0\0", b"TNTIDX\0\0"


class Indexed(Sequence[Numbers]):
    """The numbers of sentences, of ``PATH.idx`` and ``PATH.bin``.

    Attributes:
        sizes: tokens of each sentence, with ``</s>``.

    Args:
        path: the files without their ends; ``--dataset-impl`` was ``mmap``, ``lazy`` or ``cached``.

    Raises:
        UsageError: they are no such files, or damaged.
        OSError: they cannot be read.
    """

    def __init__(self, path: Path) -> None:
        index = path.with_name(f"{path.name}.idx").read_bytes()
        self._content = path.with_name(f"{path.name}.bin").read_bytes()
        try:
            if index.startswith(_SIGN):
                _, version, code, count = _HEAD.unpack_from(index)
                self.sizes = np.frombuffer(index, "<i4", count, _HEAD.size)
                self._places = np.frombuffer(index, "<i8", count, _HEAD.size + 4 * count)
                self._first = 0  # the number of the first symbol
            elif index.startswith(_OLD_SIGN):
                _, version, code, width, count, _ = _OLD_HEAD.unpack_from(index)
                rest = np.frombuffer(index, "<i8", 3 * count + 2, _OLD_HEAD.size)
                self.sizes, self._places = rest[2 * count + 2 :], width * rest[count + 1 : -count]
                self._places, self._first = self._places[:count], 1
            else:
                raise ValueError("no index of sentences")
            self._type = np.dtype(f"<{_TYPES[code]}")
            ends = self._places + self._type.itemsize * self.sizes.astype(np.int64)
            if version != 1 or (self.sizes < 0).any() or (self._places < 0).any():
                raise ValueError("a size or a place that is none")
            if (ends > len(self._content)).any():
                raise ValueError("a sentence beyond the end")
        except (struct.error, ValueError, KeyError) as error:
            allowed = "files of fairseq-preprocess: --dataset-impl mmap, lazy or cached"
            raise UsageError(f"{path}.idx: got {error}; allowed: {allowed}") from error

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, place: int) -> Numbers: ...
    @overload
    def __getitem__(self, place: slice) -> list[Numbers]: ...
    def __getitem__(self, place: int | slice) -> Numbers | list[Numbers]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        start, size = int(self._places[place]), int(self.sizes[place])
        numbers: Numbers = np.frombuffer(self._content, self._type, size, start).astype(np.int64)
        return numbers - self._first


class Subset:
    """The pairs of a subset, with the names that fairseq's data set of pairs has.

    Attributes:
        src_sizes: tokens of each source, with ``</s>``.
        tgt_sizes: of each target; None: there are no targets.

    Args:
        sources: the sources.
        targets: their targets, if there are any.
    """

    def __init__(self, sources: Indexed, targets: Indexed | None) -> None:
        self._sources = sources
        self.src_sizes = sources.sizes
        self.tgt_sizes = None if targets is None else targets.sizes

    def __len__(self) -> int:
        return len(self._sources)

    def __getitem__(self, place: int) -> dict[str, Numbers]:
        return {"source": self._sources[place]}


class Data:
    """A data folder: what fairseq's task of translation has of it, under the same names.

    Attributes:
        pair: the languages.
        source_dictionary: the source's symbols.
        target_dictionary: the target's.

    Raises:
        UsageError: there are no files of a pair of languages, or they are damaged.
    """

    def __init__(self, data: str) -> None:
        self._folder = Path(data)
        source, target = language_pair(data)
        if source is None or target is None:
            raise option_error("DATA", data, "a folder made by fairseq-preprocess")
        self.pair = source, target
        self.source_dictionary, self.target_dictionary = (
            Dictionary.read(self._folder / f"dict.{language}.txt") for language in self.pair
        )
        self._subsets: dict[str, Subset] = {}

    def dataset(self, subset: str) -> Subset:
        """Return a subset.

        Raises:
            UsageError: the folder has none of this name, or its words are not in the dictionary.
        """
        if subset not in self._subsets:
            sources, targets = (self.side(subset, language) for language in self.pair)
            if sources is None:
                raise option_error("--subset", subset, f"one that DATA ({self._folder}) holds")
            last = max((int(tokens.max()) for tokens in sources if len(tokens)), default=0)
            if last >= len(self.source_dictionary):
                allowed = (
                    "a folder whose files fit its dictionaries; these have a word "
                    f"{last}, and there are {len(self.source_dictionary)}"
                )
                raise option_error("DATA", str(self._folder), allowed)
            self._subsets[subset] = Subset(sources, targets)
        return self._subsets[subset]

    def side(self, subset: str, language: str) -> Indexed | None:
        """Return one side of a subset; None: the folder does not have it."""
        path = self._folder / f"{subset}.{'-'.join(self.pair)}.{language}"
        try:
            return Indexed(path)
        except FileNotFoundError:
            return None
