"""Running an analysis, and reading the table that it prints."""

from __future__ import annotations

import re

from fairseq_paradec.cli.main import main as paradec


def write(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def table(capsys, *arguments):
    """Run an analysis; return its rows as lists of cells."""
    status = paradec(["analyse", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert status == 0, err
    lines = out.splitlines()
    body = lines[2 : lines.index("")]
    return [re.split(r"\s{2,}", line) for line in body]
