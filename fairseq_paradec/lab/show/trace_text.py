"""A sentence's trace in a terminal: the D and V lines of each pass, or the tokens of each step.

Source: Xia et al. 2022 (GAD), appendix D, Table 11 and its caption. The bifurcation is red, the
verifier's tokens after it are struck through, tokens of earlier passes are highlighted, candidates
that only relaxed acceptance accepts are blue, and tokens after ``</s>`` are left out. One thing
differs: below a blue candidate, V shows the verifier's own token, struck through, where Table 11
repeats the candidate. The steps are listed as in Stern et al. 2018, section 7.4.
"""

from collections.abc import Sequence

from ...output import printable
from .symbols import display_width
from .trace_view import EOS, MEANINGS, Cell, Pass, Sentence, State

#: The largest number of tokens of earlier passes that a terminal shows.
MOST_BEFORE, BEFORE = 100, 12

#: Marks around a token, on pages and where there is no colour.
MARKS: dict[str, tuple[str, str]] = {
    State.GIVEN: ("=", ""),
    State.RESCUED: ("*", "*"),
    State.BIFURCATION: ("[", "]"),
    State.BONUS: ("+", ""),
    State.DISCARDED: ("~", "~"),
    State.PENDING: ("(", ")"),
    State.OPEN: ("·", ""),
}

#: ANSI attributes: black on yellow, white on blue, white on red, green, dim struck through, cyan;
#: black on magenta.
STYLES: dict[str, str] = {
    State.PREVIOUS: "30;43",
    State.GIVEN: "30;45",
    State.RESCUED: "97;44",
    State.BIFURCATION: "97;41",
    State.BONUS: "32",
    State.DISCARDED: "2;9",
    State.PENDING: "36",
    State.OPEN: "2",
}


def paint(text: str, state: str, color: bool) -> str:
    """Return a token with its state, as colour or as marks around it."""
    if color:
        style = STYLES.get(state)
        return text if style is None else f"\x1b[{style}m{text}\x1b[0m"
    return text.join(MARKS.get(state, ("", "")))


def legend(color: bool) -> str:
    """Return the legend of lines and states."""
    lines = ["D: the drafter's tokens in a pass. V: the verifier's."]
    for state, meaning in MEANINGS.items():
        shown = paint(state, state, color)
        if state == State.PREVIOUS and not color:
            shown += " |"
        width = len(state) if color else len(shown)
        lines.append(f"  {shown}{' ' * (13 - width)}  {meaning}")
    return "\n".join(lines)


def sentence_text(sentence: Sentence, color: bool, width: int | None = None) -> str:
    """Return a sentence for a terminal: source, two lines per pass, output, summary.

    Args:
        sentence: as read.
        color: use ANSI colours instead of marks around the tokens.
        width: columns of the terminal, at which D and V lines are folded together; None for no
            folding.
    """
    lines = [printable(f"{sentence.name} ({sentence.decoding})")]
    source = ["(not in the trace)"] if sentence.source is None else sentence.source
    lines += _grid(["source"], [[_shown(Cell(t, State.ACCEPTED), color)] for t in source], width)
    for each in sentence.passes:
        labels = [f"{each.number:>4} {letter}" for letter in "DV"]
        lines += _grid(labels, _columns(each, color), width)
    output = [[_shown(Cell(t, State.ACCEPTED), color)] for t in sentence.output]
    lines += _grid(["output"], output, width)
    return "\n".join([*lines, sentence.summary])


def steps_text(sentence: Sentence) -> str:
    """Return a sentence for a terminal as input, output, and a line per step."""
    lines = [
        f"{sentence.name} ({sentence.decoding})",
        f"Input:  {_line(sentence.source)}",
        f"Output: {_line(sentence.output)}",
        *map("   ".join, _step_lines(sentence)),
        sentence.steps_summary,
    ]
    return "\n".join(map(printable, lines))


def _line(tokens: list[str] | None) -> str:
    """Return tokens as a line of text, without a final ``</s>``."""
    if tokens is None:
        return "(not in the trace)"
    return " ".join(tokens[:-1] if tokens[-1:] == [EOS] else tokens)


def _step_lines(sentence: Sentence) -> list[tuple[str, str, str]]:
    """Return the number, the count and the tokens of each step, aligned."""
    steps = [[sentence.output[place] for place in step.places] for step in sentence.steps]
    first = len(str(len(steps)))
    second = len(str(max(map(len, steps), default=0)))
    return [
        (
            f"Step {number:>{first}}",
            f"{len(tokens):>{second}} token{' ' if len(tokens) == 1 else 's'}",
            f"[{', '.join(tokens)}]",
        )
        for number, tokens in enumerate(steps, start=1)
    ]


#: The text of a cell, and its width in columns.
Shown = tuple[str, int]


def _shown(cell: Cell | None, color: bool) -> Shown:
    """Return a cell's text and width."""
    if cell is None:
        return "", 0
    token = printable(cell.token)
    text = paint(token, cell.state, color)
    return text, display_width(token if color else text)


def _columns(entry: Pass, color: bool) -> list[list[Shown]]:
    """Return D above V for each position; without colour, a bar follows earlier passes' tokens.

    Only the last of the earlier passes' tokens are shown.
    """
    first = entry.start - BEFORE if entry.start > MOST_BEFORE else 0
    count = f"({first} tokens)" if first else ""
    columns: list[list[Shown]] = [[(count, len(count))] * 2] if first else []
    for i in range(first, max(len(entry.draft), len(entry.verifier))):
        if i == entry.start > 0 and not color:
            columns.append([("|", 1), ("|", 1)])
        pair = [line[i] if i < len(line) else None for line in (entry.draft, entry.verifier)]
        columns.append([_shown(cell, color) for cell in pair])
    return columns


def _grid(labels: Sequence[str], columns: Sequence[list[Shown]], width: int | None) -> list[str]:
    """Join columns, each as wide as its widest cell, folded to ``width``."""
    sizes = [max(size for _, size in column) for column in columns]
    lines = []
    for first, last in _folds(sizes, None if width is None else width - 8):
        for row, label in enumerate(labels):
            cells = [
                column[row][0] + " " * (size - column[row][1])
                for column, size in zip(columns[first:last], sizes[first:last])
            ]
            head = label if first == 0 or len(labels) > 1 else ""
            lines.append(f"{head:<8}{' '.join(cells)}".rstrip())
    return lines


def _folds(sizes: Sequence[int], room: int | None) -> list[tuple[int, int]]:
    """Cut columns into runs that fit; a column that is too wide stands alone."""
    folds, first, used = [], 0, 0
    for i, size in enumerate(sizes):
        if room is not None and i > first and used + size > room:
            folds.append((first, i))
            first, used = i, 0
        used += size + 1
    return [*folds, (first, len(sizes))]
