"""Running paradec's commands in this process, and reading the tables that they print."""

import re

from fairseq_paradec.cli.main import main as paradec


def write(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def run(capsys, *arguments):
    """Run a command; return its status, and what it printed to stdout and stderr."""
    capsys.readouterr()
    status = paradec([*map(str, arguments)])
    return status, *capsys.readouterr()


def refused(capsys, command, *arguments):
    """Run a command that must be refused, with nothing on stdout; return the line that says why."""
    status, out, err = run(capsys, command, *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith(f"paradec {command}: error: "), err
    return err


def table(capsys, *arguments):
    """Run an analysis; return its rows as lists of cells."""
    status, out, err = run(capsys, "analyse", *arguments)
    assert status == 0, err
    lines = out.splitlines()
    body = lines[2 : lines.index("")]
    return [re.split(r"\s{2,}", line) for line in body]
