"""The rows of the untimed presets of ``paradec benchmark``."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...registry import METHODS
from ..analysis import benchmark_tables
from ..analysis.blocks import METHOD, SINGLE_TOKENS
from ..analysis.promises import AS_OURS, EXACT
from ..analysis.quality import Quality
from ..data.table import Cells, Column, Table, column
from .outputs import OTHER_MODEL, RELAXED
from .presets import LOSSLESS, Comparison

if TYPE_CHECKING:
    from .counts import Setting

Entry = Mapping[str, Any]

BLOCK = column("mean_accepted_block", "mean accepted block (tokens / blocks)")
HISTOGRAM = column("accepted_histogram", "% of passes that accept 0, 1, 2, ... tokens", "%", ".0f")
IDENTICAL = column("identical", "identical, %", "%")
#: What promised a row's outputs and made them; pages show the engine alone.
HIDDEN = {name: column(name, hidden=True) for name in ("lossless", "model", "drafter")}

#: Columns of options, by option; those that no row has are left out.
LOSSLESS_OPTIONS = {
    "beam": "beam",
    "block_size": "block",
    "jacobi_window": "window",
    "jacobi_init": "first_guess",
}
ACCEPTANCE_OPTIONS = {
    "block_size": "k",
    "draft_confidence": "confidence",
    "draft_tree": "nodes",
    "accept_topk": "beta",
    "accept_margin": "tau",
    "accept_distance": "epsilon",
    "min_block": "l",
}
_OPTIONAL: list[Column | str] = [
    *LOSSLESS_OPTIONS.values(),
    *ACCEPTANCE_OPTIONS.values(),
    *("model", "drafter", "other", "drafts"),
    BLOCK,
]


def lossless(setting: "Setting", entry: Entry) -> Cells:
    """Return the counts of a setting."""
    options, provenance = setting.spec.options, entry["provenance"]
    sentences, ties = entry["sentences"], entry["ties"] or 0
    # A window of a block is the default, as far as there are windows.
    shown: dict[str, Any] = {"jacobi_window": "block"} if "block_size" in options else {}
    shown |= {"block_size": entry["flags"].get("block_size"), **options}
    others = [
        f"{name.removeprefix('jacobi_')}={value}"
        for name, value in options.items()
        if name not in (*LOSSLESS_OPTIONS, "decoding", "drafter_path", "engine")
    ]
    return {
        "batch_size": setting.batch_size,
        "decoder": options["decoding"],
        **{name: shown.get(option) for option, name in LOSSLESS_OPTIONS.items()},
        "other": " ".join(others) or None,
        "sentences": sentences,
        "identical": entry["identical"],
        "ties": ties,
        "beyond_ties": sentences - entry["identical"] - ties,
        "passes": round(entry["passes"] / sentences, 3),
        "drafts": entry["drafts"],
        **{head: provenance[name] for name, head in HIDDEN.items()},
        "engine": f"{provenance['engine']} {provenance['engine_dtype']}",
    }


def acceptance(setting: "Setting", entry: Entry, judged_tokens: int, several: bool) -> Cells:
    """Return what a setting's outputs and passes come to.

    Args:
        setting: the setting.
        entry: its result; see ``counts.counted``.
        judged_tokens: what the judge writes with the first model.
        several: whether rows have several models.
    """
    spec, decoding = setting.spec, setting.spec.options["decoding"]
    shown = {**spec.options, **entry["flags"]}
    for option in ("draft_confidence", "draft_tree", "accept_distance", "min_block"):
        shown[option] = spec.options.get(option)
    sentences, tokens, passes = entry["sentences"], entry["tokens"], entry["passes"]
    accepted = sum(number * count for number, count in enumerate(entry["accepted"]))
    blocks = decoding in (SINGLE_TOKENS, METHOD)
    return {
        "model": setting.verifier.path if several else None,
        "decoder": decoding,
        "label": label(decoding, entry),
        "drafter": spec.path or spec.options.get("drafter_path"),
        **{name: shown.get(option) for option, name in ACCEPTANCE_OPTIONS.items()},
        "sentences": sentences,
        "tokens": tokens,
        "length_ratio": round(tokens / judged_tokens, 3),
        "passes_per_sentence": round(passes / sentences, 3),
        "tokens_per_pass": round(tokens / passes, 3),
        BLOCK: round(tokens / entry["blocks"], 3) if blocks else None,
        "accepted_per_pass": round(accepted / passes, 3) if entry["drafted"] else None,
        IDENTICAL: round(100 * entry["identical"] / sentences, 2),
        "ties": entry["ties"],
    }


def label(decoding: str, entry: Entry) -> str:
    """Return the label of a setting's outputs against its model's greedy search.

    A lossless setting with an output that differs by more than a tie is not labelled exact.
    """
    if decoding in METHODS and METHODS[decoding].drafts_alone:
        return OTHER_MODEL
    if entry["ties"] is None:
        return RELAXED
    promise = AS_OURS if entry["promise"] == AS_OURS else EXACT
    counts = {name: entry[name] for name in ("sentences", "identical", "ties")}
    counts["beyond ties"] = counts["sentences"] - counts["identical"] - counts["ties"]
    return benchmark_tables.label({"promise": promise, "agreement": {"": counts}, "changed": 0})


def histogram(entry: Entry) -> Cells:
    """Return the column with the share of passes for each number of accepted tokens."""
    shares = tuple(100 * count / sum(entry["accepted"]) for count in entry["accepted"])
    return {HISTOGRAM: shares if entry["drafted"] else None}


def without_idle(rows: Sequence[Cells]) -> list[Cells]:
    """Return the rows without columns of options that no row has."""
    idle = {name for name in _OPTIONAL if all(row.get(name) is None for row in rows)} - {"k"}
    if all(row["decoder"] != METHOD for row in rows):
        idle.add(BLOCK)
    return [{name: cell for name, cell in row.items() if name not in idle} for row in rows]


def shown(table: Table) -> Table:
    """Return a table for the terminal: columns with a value, and the drafter's if several."""
    drafters = {row.get("drafter") for row in table.rows} - {None}
    columns = [
        head
        for head in table.columns
        if any(row[head.key] is not None for row in table.rows)
        and (head.key != "drafter" or len(drafters) > 1)
    ]
    return replace(table, columns=columns)


def title(asked: Comparison, settings: Sequence["Setting"]) -> str:
    """Return the title of a table of ``lossless``."""
    what = ", ".join(spec.options["decoding"] for spec in asked.decoder)
    what = what or "every decoder without a drafter"
    by_ours = settings[0].verifier.by_ours
    if "beam" in asked.sweep:
        judge = "our own beam search" if by_ours else "fairseq's beam search"
        return f"Lossless: {what} with a beam against {judge}"
    return f"Lossless: {what} against {'our own greedy search' if by_ours else 'fairseq greedy'}"


def notes(asked: Comparison, settings: Sequence["Setting"], quality: Quality | None) -> list[str]:
    """Return the notes of a table."""
    if asked.preset == LOSSLESS:
        return _notes_of_lossless(asked, settings)
    first = settings[0].verifier
    by_ours = first.by_ours
    judge = "our own greedy search" if by_ours else "fairseq's own --beam 1"
    exact = AS_OURS if by_ours else EXACT
    several = len({setting.verifier.path for setting in settings}) > 1
    blocks = any(setting.spec.options["decoding"] == METHOD for setting in settings)
    verifiers = "the models are in the rows" if several else f"verifier {first.path}"
    limits = "".join(f"; --{name.replace('_', '-')} {n}" for name, n in asked.limits.items())
    sizes = ", ".join(map(str, asked.batch_sizes))
    lines = [
        f"{sum(map(len, first.sentences.values()))} sentences of {asked.data} "
        f"({', '.join(asked.subset)}), batch size {sizes}, {asked.dtype}, {asked.device}; "
        f"{verifiers}{limits}.",
        f"Label: {exact}, the outputs are those of the model's own greedy search; {RELAXED}, they "
        "may differ"
        + (
            f"; {OTHER_MODEL}: ..., the same for a model with other greedy outputs than the first."
            if several
            else f"; {OTHER_MODEL}, the drafter's own."
        ),
        f"Identical: to {judge} with the same model. Ties, of exact decoders: the "
        "outputs first differ where the two tokens' log-probabilities are closer than 1e-4.",
        "Tokens count </s>; a pass commits the accepted tokens and one of the verifier's own. "
        f"Length ratio: tokens by those of {judge} with the first model; above "
        "1, blocks are long because outputs are, and passes per sentence tell more.",
        "k: --block-size, beta: --accept-topk, tau: --accept-margin"
        + (", epsilon: --accept-distance, l: --min-block." if blocks else "."),
    ]
    if blocks:
        lines.append(
            "Mean accepted block (Stern et al. 2018): all tokens divided by the number of blocks. "
            "A block is one of the model's own tokens and the accepted drafts after it; the pass "
            "that verifies them also finds the first token of the next block."
        )
    if quality is not None:
        lines.append(f"{quality.compared}; 95% paired-bootstrap.")
        if several:
            lines.append(
                "Differences are to the same model's greedy search, and to the first model's."
            )
        lines += [f"{name}: {signature}" for name, signature in quality.signatures().items()]
    return lines


def _notes_of_lossless(asked: Comparison, settings: Sequence["Setting"]) -> list[str]:
    (_, task), size = settings[0].verifier.load(), max(asked.batch_sizes)
    beams = "beam" in asked.sweep
    by_ours = settings[0].verifier.by_ours
    search = f"our own {'beam' if beams else 'greedy'} search, for fairseq is not installed"
    judge = search if by_ours else "fairseq's own SequenceGenerator"
    width = "with the same beam" if beams else "beam 1"
    lines = [
        f"Subsets: {','.join(asked.subset)}; {asked.dtype}. Judge: {judge}, {width}, in batches "
        f"of {size}.",
        "A tie: the outputs part where the two tokens' log-probabilities are closer than 1e-4.",
        "Passes: mean decoder passes per sentence; greedy's own count is its tokens.",
    ]
    if beams:
        lines[1:] = [
            "Identical: all hypotheses of the n-best list, in their order. "
            + (
                "Ties are not told apart without fairseq."
                if by_ours
                else "A tie: a search in which two candidates of a decision score closer than 1e-4."
            ),
            "Passes: mean decoder passes per sentence.",
        ]
    if task.source_dictionary != task.target_dictionary and not asked.decoder:
        lines.append("First guess source-copy: not run; source and target have a dictionary each.")
    return lines
