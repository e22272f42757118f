"""Every option of fairseq's commands is honoured, refused by name, or on the page with a reason."""

from pathlib import Path

import pytest
from support.fairseq_options import (
    DECODINGS,
    PAGE,
    PARSERS,
    REASONS,
    cells_of,
    fairseqs_options,
    fill,
    flags_on,
    read_by,
    run_all,
    unread,
)


def test_every_option_of_fairseq_has_a_row() -> None:
    """Also one that a later fairseq adds."""
    every = {
        action.option_strings[0]
        for command in PARSERS
        for action in fairseqs_options(command).values()
    }
    assert flags_on(PAGE.read_text("utf-8")) == every


@pytest.mark.slow
def test_every_option_is_fairseqs_or_refused_or_explained(tmp_path: Path) -> None:
    """Two values of each; ``python -m support.fairseq_options``, in tests, writes the page."""
    results = run_all(tmp_path)
    for trial, (_, _, ours) in results.items():
        if trial.option not in read_by(trial.command):
            refused = ours["error"] and ours["error"][0] == "UsageError"
            assert refused and trial.decoding == "beam", trial
            assert unread(ours) or trial.option in ("num_shards", "shard_id"), trial
    unexplained = {cell.option for cell in cells_of(results).values() if cell.needs_reason}
    assert unexplained == {*REASONS}
    page = PAGE.read_text("utf-8")
    assert fill(page, results) == page
    assert {trial.decoding for trial in results} == {*DECODINGS}
