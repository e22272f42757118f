"""paradec gallery: docs/gallery.md is whole, and the demo still decodes as it shows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.commands import ROOT

from fairseq_paradec.cli import gallery

OUT = ROOT / "docs" / "gallery"


def test_gallery_is_whole_and_a_trace_is_still_the_same():
    assert gallery.problems(OUT, ["gad"]) == []


def test_what_is_wrong_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out = tmp_path / "gallery"
    shutil.copytree(OUT, out)
    out.with_suffix(".md").write_text(gallery.page(out), "utf-8")
    assert gallery.problems(out, []) == []
    (out / "order.svg").unlink()
    (out / "old.svg").write_text("x" * 300_001)
    with open(out.with_suffix(".md"), "a") as file:
        file.write("More.\n")
    brief = json.loads((out / "traces.json").read_text("utf-8"))
    monkeypatch.setattr(gallery, "decode", lambda name, folder: brief[name] | {"passes": 7})
    assert gallery.problems(out, ["gad"]) == [
        f"{out}.md is not what paradec gallery writes",
        f"{out}/order.svg is missing",
        f"{out}/old.svg is of no picture",
        f"{out}/old.svg has 300001 bytes",
        "the trace of gad is another one",
    ]


def test_another_page_is_not_written_over(tmp_path: Path):
    (tmp_path / "report.md").write_text("# One page of all that was measured\n")
    with pytest.raises(gallery.UsageError, match="--out: got '.*report'; allowed: a folder beside"):
        gallery.make(tmp_path / "report")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.md"]
