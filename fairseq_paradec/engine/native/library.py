"""The library of native passes: its interface, and how it is found and loaded once.

Installation builds it for every instruction set of this kind of machine. A library that is missing
there, or is of other sources, is built when it is first used, for this CPU, in the user's cache.
"""

import ctypes
import enum
import functools
import logging
import os
import threading
from ctypes import c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

from .building import NativeUnavailable, build, hash_of, start_of, usable

log = logging.getLogger(__name__)

#: Where installation puts libraries.
BUILT = Path(__file__).resolve().parents[2] / "lib"

#: Held while the library is looked for: threads that need it at once build it once.
_LOADING = threading.Lock()


class Chunk(ctypes.Structure):
    """The tokens of a pass; see ``Chunk`` in csrc/stack.h."""

    _fields_ = [
        ("rows", c_int),
        ("width", c_int),
        ("tokens", c_void_p),
        ("begins", c_void_p),
        ("counts", c_void_p),
        ("starts", c_void_p),
        ("own_rows", c_void_p),
        ("source_rows", c_void_p),
        ("seen", c_void_p),
        ("seen_rows", c_int),
        ("mask", c_void_p),
        ("slots", c_int),
        ("bases", c_void_p),
        ("depths", c_void_p),
        ("sees", c_void_p),
        ("tree", c_int),
    ]


class Store(ctypes.Structure):
    """Keys and values; see ``Store`` in csrc/stack.h."""

    _fields_ = [
        ("keys", c_void_p),
        ("values", c_void_p),
        ("layers", c_int),
        ("rows", c_int),
        ("slots", c_int),
        ("lengths", c_void_p),
    ]


class Rules(ctypes.Structure):
    """Limits on all choices; see ``Rules`` in csrc/choose.h."""

    _fields_ = [
        ("pad", c_int64),
        ("unknown", c_int64),
        ("end", c_int64),
        ("first", c_int64),
        ("unknown_penalty", c_float),
        ("temperature", c_float),
        ("penalty", c_float),
        ("of_logits", c_int),
        ("suppressed", c_void_p),
        ("sequences", c_void_p),
        ("sequence_sizes", c_void_p),
        ("num_suppressed", c_int),
        ("num_sequences", c_int),
        ("ngram", c_int),
        ("has_first", c_int),
        ("renormalised", c_int),
    ]


class Before(ctypes.Structure):
    """The tokens before a position; see ``Before`` in csrc/choose.h."""

    _fields_ = [
        ("text", c_void_p),
        ("more", c_void_p),
        ("length", c_int),
        ("more_length", c_int),
    ]


class Writing(ctypes.Structure):
    """What rows write; see ``Writing`` in csrc/write.h."""

    _fields_ = [
        ("counts", c_void_p),
        ("most", c_int),
        ("least", c_float),
        ("normalised", c_int),
        ("limits", c_void_p),
        ("forced", c_void_p),
        ("before", c_void_p),
        ("tokens", c_void_p),
        ("scores", c_void_p),
        ("written", c_void_p),
    ]


class Choices(ctypes.Structure):
    """Limits on each choice, and what is chosen; see ``Choices`` in csrc/choose.h."""

    _fields_ = [
        ("limits", c_void_p),
        ("forced", c_void_p),
        ("before", c_void_p),
        ("drafted", c_void_p),
        ("best", c_void_p),
        ("score", c_void_p),
        ("drafted_score", c_void_p),
        ("drafted_rank", c_void_p),
        ("normalised", c_int),
        ("count", c_int),
    ]


class Step(ctypes.Structure):
    """A step of a beam search; see ``Step`` in csrc/beam.h."""

    _fields_ = [
        ("sentences", c_int),
        ("width", c_int),
        ("words", c_int),
        ("candidates", c_int),
        ("beam", c_int),
        ("kept", c_int),
        ("end", c_int64),
        ("scores", c_void_p),
        ("tokens", c_void_p),
        ("token_scores", c_void_p),
        ("end_scores", c_void_p),
        ("pairs", c_int),
    ]


class Extended(ctypes.Structure):
    """Extended hypotheses; see ``Extended`` in csrc/beam.h."""

    _fields_ = [
        ("scores", c_void_p),
        ("parents", c_void_p),
        ("words", c_void_p),
        ("word_scores", c_void_p),
    ]


class Search(ctypes.Structure):
    """A beam search of a batch; see ``Search`` in csrc/search.h."""

    _fields_ = [
        ("sentences", c_int),
        ("beam", c_int),
        ("room", c_int),
        ("early", c_int),
        ("enough", c_int),
        ("candidates", c_int),
        ("words_a_step", c_int),
        ("pairs", c_int),
        ("starts", c_void_p),
        ("divisors", c_void_p),
        ("limits", c_void_p),
        ("most", c_int),
        ("bits", c_void_p),
        ("forced", c_void_p),
        ("passes", c_void_p),
        ("counts", c_void_p),
        ("lengths", c_void_p),
        ("totals", c_void_p),
        ("words", c_void_p),
        ("scores", c_void_p),
    ]


class Searcher(ctypes.Structure):
    """A model with the batch's source; see ``Searcher`` in csrc/search.h."""

    _fields_ = [("stack", c_void_p), ("projection", c_void_p), ("source", c_void_p)]


class Drafting(ctypes.Structure):
    """How a beam search is drafted; see ``Drafting`` in csrc/search_drafts.h."""

    _fields_ = [("depth", c_int), ("joined", c_int), ("rounds", c_void_p)]


class Drafted(ctypes.Structure):
    """How a batch is drafted; see ``Drafted`` in csrc/draft.h."""

    _fields_ = [
        ("by", c_int),
        ("joined", c_int),
        ("most", c_int),
        ("adaptive", c_int),
        ("least", c_float),
        ("normalised", c_int),
        ("positions", c_int),
        ("window", c_int),
        ("hybrid", c_int),
        ("whole", c_int),
        ("first", c_int),
        ("masks", c_int),
        ("caches", c_int),
        ("mask", c_int64),
        ("heads", c_void_p),
        ("start", c_int64),
        ("min_length", c_int),
        ("forced_length", c_int),
    ]


class Heads(ctypes.Structure):
    """Prediction heads on the verifier's states; see ``Heads`` in csrc/draft.h."""

    _fields_ = [
        ("inner", c_void_p),
        ("outer", c_void_p),
        ("maps", c_int),
        ("learned", c_int),
        ("identity", c_int),
        ("seen", c_int),
        ("activation", c_int),
    ]


class Entry(ctypes.Structure):
    """A sentence that enters; see ``Entry`` in csrc/draft.h."""

    _fields_ = [
        ("limit", c_int),
        ("prefix", c_void_p),
        ("given", c_void_p),
        ("source", c_void_p),
        ("prefix_length", c_int),
        ("given_length", c_int),
        ("source_length", c_int),
        ("length", c_int),
        ("own_row", c_int),
        ("source_row", c_int),
        ("draft_own_row", c_int),
        ("draft_source_row", c_int),
    ]


class Written(ctypes.Structure):
    """What a row has written; see ``Written`` in csrc/draft.h."""

    _fields_ = [
        ("tokens", ctypes.POINTER(c_int64)),
        ("scores", ctypes.POINTER(c_float)),
        ("passes", ctypes.POINTER(ctypes.c_int32)),
        ("length", c_int),
        ("num_passes", c_int),
        ("ended", c_int),
    ]


class Reader(ctypes.Structure):
    """A model in one batch; see ``Reader`` in csrc/draft.h."""

    _fields_ = [
        ("stack", c_void_p),
        ("projection", c_void_p),
        ("own", c_void_p),
        ("source", c_void_p),
    ]


class Until(ctypes.Structure):
    """When a call returns early; see ``Until`` in csrc/draft.h."""

    _fields_ = [("milliseconds", c_int), ("any", c_int)]


#: The structures, in the order of csrc's ``layout``, and the version of the interface.
STRUCTURES = (
    *(Chunk, Store, Rules, Before, Writing, Choices, Step, Extended, Search, Searcher, Drafting),
    *(Drafted, Heads, Entry, Written, Reader, Until),
)
VERSION = 12

#: A call returns after so many milliseconds, so that Ctrl-C is noticed.
AT_MOST = 50


class MapOf(enum.IntEnum):
    """The linear maps of a layer; csrc's ``MapOf``."""

    QKV, SELF_OUT, CROSS_QUERY, CROSS_OUT, FEED_IN, FEED_GATE, FEED_OUT = range(7)


class NormOf(enum.IntEnum):
    """The norms of a layer; csrc's ``NormOf``."""

    SELF, CROSS, FEED = range(3)


class NormOfStack(enum.IntEnum):
    """The norms around the layers; csrc's ``NormOfStack``."""

    EMBEDDING, FINAL = range(2)


class Limit(enum.IntFlag):
    """Limits of one position; csrc's bits in choose.h."""

    NO_END, ONLY_END, NOT_SUPPRESSED = 1, 2, 4


class DraftedBy(enum.IntEnum):
    """What drafts; csrc's ``DraftedBy``."""

    NOTHING, TOKENS, GUESSES, MASKS, HEADS = range(5)


class Window(enum.IntEnum):
    """The blocks of Jacobi decoding; csrc's ``Window``."""

    DOUBLING, BLOCKS, SLIDING = range(3)


class Returned(enum.IntEnum):
    """Why a call of the loop has returned; csrc's ``Returned``."""

    ALL_ENDED, NO_MEMORY, NO_WORD, NO_ROOM, ONE_ENDED, TIME_IS_UP, DRAFTER_IS_NAN = range(7)


_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "paradec_layout": (c_char_p, []),
    "paradec_lanes": (c_int, []),
    "paradec_halves": (c_int, []),
    "paradec_allowed": (c_int, []),
    "paradec_stack_new": (c_void_p, [c_int, c_int, c_int, c_float, c_int]),
    "paradec_stack_free": (None, [c_void_p]),
    "paradec_stack_tables": (c_int, [c_void_p, c_void_p, c_int, c_float, c_void_p, c_int]),
    "paradec_stack_biases": (c_int, [c_void_p, c_void_p, c_int]),
    "paradec_stack_layer": (None, [c_void_p, c_int, c_int, c_int]),
    "paradec_stack_map": (c_int, [c_void_p, c_int, c_int, c_void_p, c_void_p, c_int, c_int, c_int]),
    "paradec_stack_norm": (c_int, [c_void_p, c_int, c_int, c_void_p, c_void_p, c_float]),
    "paradec_map_new": (c_void_p, [c_void_p, c_void_p, c_int, c_int, c_int]),
    "paradec_map_with_exact": (c_void_p, [c_void_p, c_void_p]),
    "paradec_packing": (c_char_p, []),
    "paradec_map_bytes": (c_size_t, [c_int, c_int, c_int]),
    "paradec_map_write": (None, [c_void_p, c_void_p]),
    "paradec_stack_map_write": (None, [c_void_p, c_int, c_int, c_void_p]),
    "paradec_map_at": (c_void_p, [c_void_p, c_int, c_int, c_int]),
    "paradec_stack_map_at": (None, [c_void_p, c_int, c_int, c_void_p, c_int, c_int, c_int]),
    "paradec_map_free": (None, [c_void_p]),
    "paradec_map": (c_int, [c_void_p, c_void_p, c_int, c_int, c_void_p, c_int, c_int, c_int]),
    "paradec_pass": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int]),
    "paradec_attention": (c_int, [c_void_p] * 4 + [c_int, c_int, c_void_p, c_int]),
    "paradec_source": (
        c_int,
        [c_void_p, c_void_p, c_void_p, c_int, c_int, c_void_p, c_void_p, c_int],
    ),
    "paradec_copy": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_int]),
    "paradec_move": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int]),
    "paradec_write": (c_int, [c_void_p] * 7 + [c_int]),
    "paradec_choose": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_int, c_int]),
    "paradec_extend": (c_int, [c_void_p] * 3),
    "paradec_search_new": (c_void_p, [c_void_p] * 3),
    "paradec_search_drafts_new": (c_void_p, [c_void_p] * 5),
    "paradec_search_run": (c_int, [c_void_p, c_int, c_int]),
    "paradec_search_free": (None, [c_void_p]),
    "paradec_drafts_new": (c_void_p, [c_void_p] * 2),
    "paradec_drafts_free": (None, [c_void_p]),
    "paradec_drafts_add": (c_int, [c_void_p] * 2),
    "paradec_drafts_run": (c_int, [c_void_p] * 4 + [c_int]),
    "paradec_drafts_slots": (c_int, [c_void_p]),
    "paradec_drafts_written": (None, [c_void_p, c_int, c_void_p]),
}


def library() -> Any:
    """Return the library for this CPU, loaded.

    Raises:
        NativeUnavailable: there is none, and none can be built.
    """
    loaded = _load()
    if isinstance(loaded, NativeUnavailable):
        raise loaded
    return loaded


def halves() -> bool:
    """Return whether weights of ``int4`` are fewer bytes than those of ``int8`` here."""
    loaded = _load()
    return not isinstance(loaded, NativeUnavailable) and bool(loaded.paradec_halves())


def path() -> Path:
    """Return the file of the library for this CPU, loaded; its name begins with its ``TARGETS``.

    Raises:
        NativeUnavailable: there is none, and none can be built.
    """
    return Path(library()._name)


@functools.cache
def _load() -> Any:
    """Load the library, or return the reason why it cannot be loaded."""
    with _LOADING:
        return _found_or_built()


def _found_or_built() -> Any:
    """Return the best library that is there or can be built; see ``_load``."""
    problems: list[str] = []
    for name, flags in usable():
        for folder in (BUILT, user_folder("native")):
            for path in () if folder is None else sorted(folder.glob(f"{name}-*")):
                try:
                    if path.name.startswith(start_of(name, flags)):
                        return _open(path)
                except (OSError, AttributeError) as error:
                    problems.append(str(error).splitlines()[0])
        try:
            log.info("building the native library for this CPU (%s): some seconds, once", name)
            return _open(build(name, flags, user_folder("native")))
        except (OSError, AttributeError, NativeUnavailable) as error:
            problems.append(str(error).splitlines()[0])
    return NativeUnavailable("; ".join(dict.fromkeys(problems)))


def _open(path: Path) -> Any:
    """Load a library whose content is what its name says; a damaged one could crash.

    Raises:
        OSError: it is damaged, has another interface, or cannot be loaded or used.
        AttributeError: it lacks a function.
    """
    if path.stem.rpartition("-")[2] != hash_of(path.read_bytes()):
        raise OSError(f"{path.name} is damaged")
    opened = ctypes.CDLL(str(path))
    for function, (result, arguments) in _SIGNATURES.items():
        getattr(opened, function).restype = result
        getattr(opened, function).argtypes = arguments
    if opened.paradec_layout().decode() != layout():
        raise OSError(f"{path.name} has another interface than this package")
    if not opened.paradec_allowed():
        raise OSError(f"{path.name}: the kernel does not let this process use matrix tiles")
    return opened


def layout() -> str:
    """Return what a library must say of itself: version, and sizes and offsets of structures."""
    lines = [str(VERSION)]
    for structure in STRUCTURES:
        fields = [f"{name}@{getattr(structure, name).offset}" for name, *_ in structure._fields_]
        lines.append(" ".join((structure.__name__, str(ctypes.sizeof(structure)), *fields)))
    return "\n".join(lines)


def user_folder(name: str) -> Path | None:
    """Return a folder of this package's in the user's cache; None: the user has no home."""
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
    return Path(home) / "fairseq_paradec" / name
