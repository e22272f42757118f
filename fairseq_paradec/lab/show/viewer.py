"""A page that shows traces sentence by sentence, all methods side by side.

Each sentence is one block of data, read only when it is shown; ``viewer.js`` draws it. Five views:
the output's tokens with their origins; the D and V lines of every pass (Xia et al. 2022, Table 11);
the steps (Stern et al. 2018, section 7.4); for Jacobi decoders and greedy search the decoding
dependency graph (Santilli et al. 2023, Figure 4); and for beam search with drafts its tree.

Pure functions of the sentences of ``trace_view`` and the graphs of ``ddg``.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ...errors import UsageError
from ...output import printable
from ...records import Record
from ..analysis.promises import engine_of, promise_of
from . import beam_tree, ddg
from . import page as writer
from .symbols import is_rtl, typed
from .trace_text import MARKS
from .trace_view import MEANINGS, ORIGINS, Cell, Sentence, State, source_of

#: The views that a page can open with.
VIEWS = ("output", "passes", "steps", "dependencies", "tree")

#: What became of a tree's nodes, in the order of their numbers in the data.
FATES = (beam_tree.BEST, beam_tree.KEPT, beam_tree.NEVER)

#: States in the order of their numbers in the data.
STATES = tuple(MEANINGS)

#: Digits of log-probabilities in the data.
DIGITS = 6


def page(title: str, view: str, blocks: Iterable[str]) -> Iterator[str]:
    """Yield a page that opens with a view, piece by piece; ``blocks`` are of ``sentence``."""
    yield from writer.page(
        "trace.html",
        [writer.resource("viewer.css")],
        [writer.resource("viewer.js")],
        title=title,
        blocks=blocks,
        **opening(view),
    )


def opening(view: str = "output") -> dict[str, Any]:
    """Return the values of ``viewer.html``, the beginning of a page's viewer.

    Blocks of sentences follow it. The page's head needs ``viewer.css`` and ``viewer.js``.
    """
    if view not in VIEWS:
        raise ValueError(f"view {view!r} is none of {VIEWS}")
    terms = {
        "states": STATES,
        "meanings": MEANINGS,
        "origins": ORIGINS,
        "fates": FATES,
        "marks": {state: MARKS.get(state, ("", "")) for state in STATES},
    }
    return {"view": view, "views": VIEWS, "terms": writer.data("terms", terms)}


def block(
    sentences: Sequence[Sentence],
    records: Sequence[Record],
    files: Sequence[str] = (),
    missing: Sequence[str] = (),
) -> str:
    """Return one sentence, decoded by one or several methods, as a part of a page.

    Args:
        sentences: as read by ``trace_view.read_sentence``, one per method, of the same source.
        records: their records.
        files: their files, shown if two sentences have the same method.
        missing: files that do not have the sentence.
    """
    words = Words()
    decodings = [sentence.decoding for sentence in sentences]
    names = list(files) or [""] * len(sentences)
    panels = []
    for sentence, record, file in zip(sentences, records, names, strict=True):
        twice = decodings.count(sentence.decoding) > 1
        panels.append(_panel(sentence, record, words) | {"file": printable(file) if twice else ""})
    source = source_of(sentences)
    value = {
        "name": printable(sentences[0].name),
        "source": None if source is None else words.numbers(source),
        "rtl": is_rtl(source or ()),
        "missing": [printable(file) for file in missing],
        "panels": panels,
        "words": words.known,
    }
    return writer.data("sentence", value)


class Words:
    """The tokens of a block of data, each written once; ``known`` lists them."""

    def __init__(self) -> None:
        self.known: list[str] = []
        self._places: dict[str, int] = {}

    def number(self, token: str) -> int:
        """Return where a token stands in ``known``, to which a new one is appended."""
        if token not in self._places:
            self._places[token] = len(self.known)
            self.known.append(printable(token))
        return self._places[token]

    def numbers(self, tokens: Iterable[str]) -> list[int]:
        """Return where tokens stand in ``known``."""
        return list(map(self.number, tokens))


def _panel(sentence: Sentence, record: Record, words: Words) -> dict[str, Any]:
    """Return the data of a sentence decoded by one method."""
    return {
        "decoding": printable(sentence.decoding),
        "flags": typed(sentence.flags),
        "rtl": is_rtl(sentence.output),
        "origins": {"token": [], "pass_number": [], "state": []}
        | _columns(sentence.origins, words),
        "numbers": {
            "tokens": len(sentence.output),
            "passes": len(sentence.passes),
            "tokens per pass": f"{sentence.tokens_per_pass:.2f}",
            "drafted": sentence.drafted,
            "accepted": sentence.accepted,
            "rescued": sentence.rescued,
            "promise": promise_of(record),
            "engine": printable(engine_of(record)),
        },
        "reordered": sentence.reordered,
        "passes": [
            {
                "start": each.start,
                "draft": _own_cells(each.draft, words),
                "verifier": _own_cells(each.verifier, words),
            }
            for each in sentence.passes
        ],
        "steps": [{"pass": step.number, "position": list(step.places)} for step in sentence.steps],
        "steps_summary": sentence.steps_summary,
        **_graph(sentence, record, words),
        "tree": _tree(sentence, record, words),
    }


def _columns(items: Sequence[Cell], words: Words) -> dict[str, list[Any]]:
    """Return the fields of tokens column by column, without empty columns."""
    names = [each.name for each in dataclasses.fields(Cell)] if items else []
    if items and not items[0].pass_number:
        names.remove("pass_number")
    columns = {name: [_plain(getattr(item, name), words) for item in items] for name in names}
    return {name: values for name, values in columns.items() if values.count(None) < len(values)}


def _plain(value: Any, words: Words) -> Any:
    """Return a field for the data: states and tokens as numbers, False for a logarithm of zero."""
    if isinstance(value, State):
        return STATES.index(value)
    if isinstance(value, str):
        return words.number(value)
    if isinstance(value, float):
        return round(value, DIGITS) if math.isfinite(value) else False
    return value


def _own_cells(line: Sequence[Cell], words: Words) -> dict[str, list[Any]]:
    """Return a pass's own cells of a D or V line: others follow from the origins."""
    own = [cell for cell in line if cell.state not in (State.PREVIOUS, State.OPEN)]
    return {"position": [], "token": [], "state": []} | _columns(own, words)


def _graph(sentence: Sentence, record: Record, words: Words) -> dict[str, Any]:
    """Return the dependency graph, or the reason for its absence."""
    if ddg.method(record) not in ddg.DECODINGS:
        return {"graph": None, "no_graph": ""}
    try:
        graph = ddg.from_record(record, sentence.name)
    except UsageError as error:  # an older trace, or no output; the other views still work
        return {"graph": None, "no_graph": printable(str(error))}
    data = _columns(graph.finals, words) | {
        "final_pass": graph.final_pass,
        "waves": graph.waves,
        "predictions": [
            {"position": []} | _columns([cell for cell in row if cell is not None], words)
            for row in graph.predictions
        ],
    }
    return {"graph": data, "no_graph": ""}


def _tree(sentence: Sentence, record: Record, words: Words) -> dict[str, Any] | None:
    """Return the tree of a beam's drafts by column, or None for other methods."""
    if not any("tree" in entry for entry in record["trace"]):
        return None
    nodes = beam_tree.read_tree(record, sentence.name)
    best = beam_tree.best_path(nodes, sentence.output)
    where = beam_tree.places(nodes, best)
    return {
        "token": words.numbers(node.word for node in nodes),
        "parent": [node.parent for node in nodes],
        "pass": [node.number for node in nodes],
        "fate": [FATES.index(beam_tree.state(nodes, i, best)) for i in range(len(nodes))],
        "column": [column for column, _ in where],
        "row": [row for _, row in where],
    }
