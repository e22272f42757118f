"""fairseq's dictionary: numbers of symbols, as its files have them, without fairseq."""

from collections.abc import Iterable
from pathlib import Path

from ..errors import UsageError, shown

#: The symbols that every dictionary begins with.
BOS, PAD, EOS, UNK = range(4)
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")

#: At the end of a line: the symbol is taken though it is there already.
_OVERWRITE = "#fairseq:overwrite"


class Dictionary:
    """Symbols and their numbers; it behaves as ``fairseq.data.Dictionary`` does.

    Attributes:
        symbols: the symbols by number, the special ones first.
        counts: how often each was in the training data, as the file has it.
        nspecial: how many of the symbols are special.
    """

    nspecial = len(SPECIAL)

    def __init__(self) -> None:
        self.symbols: list[str] = []
        self.counts: list[int] = []
        self._numbers: dict[str, int] = {}
        for symbol in SPECIAL:
            self.add(symbol)

    def __len__(self) -> int:
        return len(self.symbols)

    def __contains__(self, symbol: str) -> bool:
        return symbol in self._numbers

    def __getitem__(self, number: int) -> str:
        return self.symbols[number] if number < len(self.symbols) else SPECIAL[UNK]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dictionary) and self._numbers == other._numbers

    def index(self, symbol: str) -> int:
        """Return a symbol's number; that of ``<unk>``, if it is not there."""
        return self._numbers.get(symbol, UNK)

    def bos(self) -> int:
        """Return the number of ``<s>``."""
        return BOS

    def pad(self) -> int:
        """Return the number of ``<pad>``."""
        return PAD

    def eos(self) -> int:
        """Return the number of ``</s>``."""
        return EOS

    def unk(self) -> int:
        """Return the number of ``<unk>``."""
        return UNK

    def add(self, symbol: str, count: int = 1, overwrite: bool = False) -> int:
        """Add a symbol, or to its count; return its number.

        Args:
            symbol: what is added.
            count: how often it was in the training data.
            overwrite: it gets a new number, though it has one.
        """
        number = self._numbers.get(symbol)
        if number is not None and not overwrite:
            self.counts[number] += count
            return number
        self._numbers[symbol] = len(self.symbols)
        self.symbols.append(symbol)
        self.counts.append(count)
        return len(self.symbols) - 1

    def pad_to_multiple(self, factor: int) -> None:
        """Add ``madeupword0000`` and so on, until the number of symbols is a multiple."""
        made = 0
        while factor > 1 and len(self) % factor:
            self.add(f"madeupword{made:04d}", 0)
            made += 1

    def encode_line(self, line: str, end: bool = True) -> list[int]:
        """Return the numbers of a line's symbols, which any spaces part.

        Args:
            line: symbols of one sentence.
            end: whether ``</s>`` follows.
        """
        return [*map(self.index, line.split()), *([EOS] if end else [])]

    def string(self, numbers: Iterable[int]) -> str:
        """Return the symbols of numbers, with spaces between them, without ``<s>`` and ``</s>``."""
        return " ".join(self[number] for number in numbers if number not in (BOS, EOS))

    @classmethod
    def of_words(cls, words: Iterable[str]) -> "Dictionary":
        """Make a dictionary of words behind the special ones."""
        dictionary = cls()
        for word in words:
            dictionary.add(word)
        return dictionary

    def save(self, path: Path) -> None:
        """Write a file as fairseq does, which ``read`` reads.

        Raises:
            OSError: it cannot be written.
        """
        counted = zip(self.symbols, self.counts, strict=True)
        lines = (f"{symbol} {count}\n" for symbol, count in [*counted][self.nspecial :])
        path.write_text("".join(lines), encoding="utf-8")

    @classmethod
    def read(cls, path: str | Path) -> "Dictionary":
        """Read a file of fairseq: a symbol and its count in each line.

        Raises:
            UsageError: it is no such file.
            OSError: it cannot be read.
        """
        try:
            with open(path, encoding="utf-8") as lines:
                return cls.of_lines(lines)
        except UnicodeDecodeError as error:
            raise UsageError(f"{path}: got byte {error.start}, no UTF-8; {_ALLOWED}") from error
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None

    @classmethod
    def of_lines(cls, lines: Iterable[str]) -> "Dictionary":
        """Make a dictionary of a file's lines.

        Raises:
            UsageError: a line has no symbol and count, or a symbol comes twice.
        """
        dictionary = cls()
        for number, line in enumerate(lines, 1):
            fields = line.rstrip().rsplit(" ", 1)
            overwrite = fields[-1] == _OVERWRITE
            if overwrite:
                fields = fields[0].rsplit(" ", 1)
            try:
                symbol, count = fields[0], int(fields[1])
            except (IndexError, ValueError) as error:
                raise _line_error(number, line) from error
            if symbol in dictionary and not overwrite:
                raise _line_error(number, line, ", whose symbol is there already")
            dictionary.add(symbol, count, overwrite)
        return dictionary


def _line_error(number: int, line: str, why: str = "") -> UsageError:
    """Return the error for a line that is no symbol and count."""
    return UsageError(f"line {number}: got {shown(line.rstrip())}{why}; {_ALLOWED}")


_ALLOWED = (
    "allowed: a symbol and its count in each line, a symbol that is there already with "
    f"{_OVERWRITE} behind it"
)
