"""fairseq's ways to split words (``--bpe``): symbols of a line, with spaces between them."""

import contextlib
import io
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from ..errors import UsageError, needs, option_error

#: Stands for a space among symbols, which spaces part.
SPACE = "\u2581"

#: A byte as a character: itself if Latin-1 prints it, else 256 further on.
_CHARACTERS = [
    chr(byte if 32 <= byte < 127 or 160 < byte and byte != 173 else byte + 256)
    for byte in range(256)
]
_BYTES = {character: byte for byte, character in enumerate(_CHARACTERS)}


class Bpe(Protocol):
    """Splits the words of a line, and joins them."""

    def encode(self, line: str) -> str:
        """Return the symbols of a line, with spaces between them."""

    def decode(self, symbols: str) -> str:
        """Return symbols as a line."""


class SubwordNmt:
    """Byte pair encoding by subword_nmt: ``@@`` follows a symbol that does not end its word.

    Args:
        codes: the file of merges, in UTF-8.
    """

    def __init__(self, codes: str) -> None:
        from subword_nmt.apply_bpe import BPE

        with open(codes, encoding="utf-8-sig") as lines:
            self._split: Callable[[str], str] = BPE(lines).process_line

    def encode(self, line: str) -> str:
        """Return the symbols of a line, with spaces between them."""
        return self._split(line)

    def decode(self, symbols: str) -> str:
        """Return symbols as a line."""
        return f"{symbols} ".replace("@@ ", "").rstrip()


class Sentencepiece:
    """A sentencepiece model for both languages.

    Args:
        model: its file.
    """

    def __init__(self, model: str) -> None:
        self._model = load_sentencepiece(model, "--sentencepiece-model")

    def encode(self, line: str) -> str:
        """Return the pieces of a line, with spaces between them."""
        return " ".join(self._model.encode(line, out_type=str))

    def decode(self, symbols: str) -> str:
        """Return pieces as a line."""
        return symbols.replace(" ", "").replace(SPACE, " ").strip()


class SentencepiecePair:
    """A sentencepiece model for each language, and tokens that are no text.

    A source may begin with a token of its own in ``>>`` and ``<<``, as OPUS-MT's models of several
    target languages read it; it is no text.

    Args:
        source: the file of the model that splits sources.
        target: the file of the model that joins targets.
        tokens: a JSON file with the tokens that precede a source, and those that are no part of a
            target's text; None: there are none.

    Raises:
        UsageError: a file is missing or wrong.
    """

    def __init__(self, source: str, target: str, tokens: str | None = None) -> None:
        self.source = load_sentencepiece(source, "--sentencepiece-source")
        self.target = load_sentencepiece(target, "--sentencepiece-target")
        self.before: list[str] = []
        self.dropped: set[str] = set()
        if tokens is not None:
            try:
                named = json.loads(Path(tokens).read_text(encoding="utf-8"))
                self.before, self.dropped = list(named["source"]), set(named["target"])
            except (OSError, ValueError, KeyError, TypeError) as error:
                allowed = f'a JSON file {{"source": [...], "target": [...]}} ({error})'
                raise option_error("--sentencepiece-tokens", tokens, allowed) from error

    def encode(self, line: str) -> str:
        """Return the pieces of a source, with spaces between them."""
        code = re.match(r">>\S+?<<", line)
        before = [*self.before, code[0]] if code else self.before
        text = line[code.end() :] if code else line
        return " ".join([*before, *self.source.encode(text, out_type=str)])

    def encode_target(self, line: str) -> str:
        """Return the pieces of a target, without the tokens that are no text."""
        return " ".join(self.target.encode(line, out_type=str))

    def decode(self, symbols: str) -> str:
        """Return a target's pieces as a line."""
        pieces = [piece for piece in symbols.split() if piece not in self.dropped]
        joined: str = self.target.decode(pieces)
        return joined.replace(SPACE, " ").strip()  # a piece that is the source's alone keeps it


class Characters:
    """Each character is a symbol."""

    def encode(self, line: str) -> str:
        """Return the characters of a line, with spaces between them."""
        return " ".join(line.replace(" ", SPACE))

    def decode(self, symbols: str) -> str:
        """Return characters as a line."""
        return symbols.replace(" ", "").replace(SPACE, " ")


class Bytes:
    """Each byte of UTF-8 is a symbol, white space first made one space."""

    def encode(self, line: str) -> str:
        """Return the bytes of a line, with spaces between them."""
        return " ".join(_as_bytes(line).replace(" ", SPACE))

    def decode(self, symbols: str) -> str:
        """Return bytes as a line; those that are no UTF-8 are left out."""
        written = symbols.replace(" ", "").replace(SPACE, " ")
        known = bytes(_BYTES[character] for character in written if character in _BYTES)
        return known.decode("utf-8", errors="ignore")


class ByteBpe(Bytes):
    """A sentencepiece model of bytes.

    Args:
        model: its file.
    """

    def __init__(self, model: str) -> None:
        self._model = load_sentencepiece(model, "--sentencepiece-model-path")

    def encode(self, line: str) -> str:
        """Return the pieces of a line, with spaces between them."""
        return " ".join(self._model.encode(_as_bytes(line), out_type=str))


#: The kinds by fairseq's names, with the names of the flags that take their files.
KINDS: dict[str, tuple[Callable[..., Bpe], tuple[str, ...]]] = {
    "subword_nmt": (SubwordNmt, ("bpe_codes",)),
    "sentencepiece": (Sentencepiece, ("sentencepiece_model",)),
    "sentencepiece_pair": (
        SentencepiecePair,
        ("sentencepiece_source", "sentencepiece_target", "sentencepiece_tokens"),
    ),
    "characters": (Characters, ()),
    "bytes": (Bytes, ()),
    "byte_bpe": (ByteBpe, ("sentencepiece_model_path",)),
}


def build(name: str, files: Mapping[str, str]) -> Bpe:
    """Build what splits words.

    Args:
        name: a key of ``KINDS``.
        files: its files, by fairseq's names of the flags that take them.

    Raises:
        UsageError: a file is missing, or not one of its kind.
    """
    kind, flags = KINDS[name]
    with errors_named(name):
        return kind(*(files.get(flag) for flag in flags))


@contextlib.contextmanager
def errors_named(name: str | None) -> Iterator[None]:
    """Say in one line what the body, which builds what splits words, raises or prints.

    Raises:
        UsageError: it fails; ``name`` is fairseq's ``--bpe``, for the message.
    """
    printed = io.StringIO()  # subword_nmt prints what is wrong, and exits
    try:
        with contextlib.redirect_stderr(printed):
            yield
    except UsageError:
        raise
    except (Exception, SystemExit) as error:  # each library raises its own
        why = " ".join((printed.getvalue()[-500:] or str(error)).split())
        raise needs("--bpe", name, f"its file, such as --bpe-codes FILE ({why})") from error
    sys.stderr.write(printed.getvalue())


def load_sentencepiece(path: str, flag: str) -> Any:
    """Load a sentencepiece model.

    Raises:
        UsageError: the file is missing or another.
    """
    from sentencepiece import SentencePieceProcessor

    try:
        return SentencePieceProcessor(model_file=path)
    except (OSError, RuntimeError, TypeError) as error:
        raise option_error(flag, path, "a model that sentencepiece wrote") from error


def _as_bytes(line: str) -> str:
    """Return the bytes of a line as characters, white space as one space each."""
    return "".join(_CHARACTERS[byte] for byte in re.sub(r"\s+", " ", line).encode())
