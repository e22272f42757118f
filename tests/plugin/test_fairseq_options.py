"""Every option of fairseq's commands is honoured, refused by name, or on the page with a reason."""

from pathlib import Path

import pytest
from support.fairseq_options import (
    PAGE,
    PARSERS,
    REASONS,
    cells_of,
    fairseqs_options,
    fill,
    flags_on,
    read_by,
    run_all,
    verdict,
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
    for trial, outcomes in results.items():
        if trial.option not in read_by(trial.command):
            assert verdict(trial, *outcomes) == "refused"
    unexplained = {cell.option for cell in cells_of(results).values() if cell.needs_reason}
    assert unexplained == {*REASONS}
    page = PAGE.read_text("utf-8")
    assert fill(page, results) == page
