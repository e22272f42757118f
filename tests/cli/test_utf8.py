"""Text is UTF-8 in every locale, for each command and in Python; U+FEFF is no text."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from fairseq.hub_utils import GeneratorHubInterface
from support import commands
from support.commands import DEMO, PLUGIN

from fairseq_paradec.cli.main import main

BIN = Path(sys.executable).parent
TEXT = "Größe über Müller straße\n"


@pytest.fixture(scope="session", params=["latin-1", "C"])
def elsewhere(request, tmp_path_factory):
    """The environment of a command in a locale of another encoding."""
    found = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    if request.param == "latin-1":
        folder, name = tmp_path_factory.mktemp("locales"), "en_US.ISO-8859-1"
        make = shutil.which("localedef")
        words = [make, "-i", "en_US", "-f", "ISO-8859-1", folder / name]
        if make is None or subprocess.run(words, capture_output=True).returncode:
            pytest.skip("no localedef, or no sources of locales")
        found |= {"LOCPATH": str(folder), "LC_ALL": name}
    code = "import locale; print(locale.getencoding())"
    said = run(sys.executable, "-c", code, env=found).decode()
    assert said.strip() == {"latin-1": "ISO-8859-1", "C": "ANSI_X3.4-1968"}[request.param]
    return found


def run(*command: object, env: dict[str, str], text: str = "", cwd: Path | None = None) -> bytes:
    """Run a command; return the bytes that it prints."""
    words, more = [os.fsencode(str(word)) for word in command], commands.environment(env)
    done = subprocess.run(
        words, input=text.encode(), env=more, cwd=cwd, capture_output=True, timeout=300
    )
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    return done.stdout


CODE = f"""
import os, sys
sys.path.insert(0, {str(PLUGIN)!r})
import utf8
utf8.restart_in_utf8()
with open({__file__!r}) as file:
    print(sys.flags.utf8_mode, ascii(sys.argv[1] + sys.stdin.read()), file.encoding)
"""


def test_a_command_starts_once_more_where_the_locale_has_another_encoding(elsewhere):
    words = (sys.executable, "-P", "-c", CODE, "Größe ")
    assert run(*words, env=elsewhere, text="ö") == b"1 'Gr\\xf6\\xdfe \\xf6' utf-8\n"


def test_a_wish_for_the_locales_encoding_is_kept(elsewhere):
    """It also ends what would be an endless loop."""
    words = (sys.executable, "-P", "-X", "utf8=0", "-c", CODE, "Größe ")
    assert run(*words, env=elsewhere | {"PYTHONUTF8": "1"}).startswith(b"0 ")


def test_in_a_locale_of_utf_8_nothing_starts_again():
    words = (sys.executable, "-P", "-c", CODE, "Größe ")
    assert run(*words, env={"PYTHONUTF8": "0", "LC_ALL": "C.UTF-8"}).startswith(b"0 ")


@pytest.mark.slow
def test_paradec_translates_as_in_utf_8(elsewhere, tmp_path):
    drafts = tmp_path / "drafts"
    drafts.write_text("Größe\n", encoding="utf-8")
    words = (BIN / "paradec", "translate", "--model", DEMO, "--decoding", "greedy")
    wanted = run(*words, env={}, text=TEXT)
    assert run(*words, env=elsewhere, text=TEXT) == wanted
    assert run(*words, "--text", TEXT, "--drafts", drafts, env=elsewhere) == wanted


@pytest.mark.slow
def test_fairseqs_commands_read_and_write_as_in_utf_8(elsewhere, tmp_path):
    words = (
        *(BIN / "fairseq-interactive", DEMO, "--user-dir", "fairseq_paradec"),
        *("--path", DEMO / "model.pt", "--decoding", "greedy", "--tokenizer", "moses"),
        *("--bpe", "subword_nmt", "--bpe-codes", DEMO / "codes.bpe"),
    )
    wanted, found = (
        [
            line
            for line in run(*words, env=env, text=TEXT, cwd=tmp_path).splitlines()
            if line[:2] in (b"S-", b"H-", b"D-", b"P-")
        ]
        for env in ({}, elsewhere)
    )
    assert len(wanted) == 4 and found == wanted


@pytest.mark.slow
def test_python_translates_as_in_utf_8(elsewhere):
    code = f"""
import sys, fairseq_paradec
model = fairseq_paradec.load({str(DEMO)!r})
sys.stdout.buffer.write(model.translate([{ascii(TEXT)}], decoding="greedy")[0].encode())
"""
    words = (sys.executable, "-c", code)
    assert run(*words, env=elsewhere) == run(*words, env={})


def test_an_argument_that_is_no_utf_8_is_refused(capsys):
    words = ["translate", "--model", str(DEMO), "--text", os.fsdecode(b"Gr\xf6\xdfe")]
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert (
        "argument --text: got 'Gr\\udcf6\\udcdfe'; allowed: text in UTF-8"
        in capsys.readouterr().err
    )


def test_the_hub_drops_byte_order_marks():
    plain = SimpleNamespace(tokenizer=None)
    assert GeneratorHubInterface.tokenize(plain, "\ufeffA \ufeffdog") == "A dog"
