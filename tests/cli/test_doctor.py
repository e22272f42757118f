"""``paradec doctor``: the same with and without torch and fairseq, and what is damaged."""

import shutil
from pathlib import Path

import pytest
from support.builders import save_drafter, task_for, tiny_model
from support.commands import DEMO, ROOT, Spoil, alone, cut, lose, put
from support.fuzzing import rehash

from fairseq_paradec import extras
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.engine.native import kept

SMALL = ROOT / "data-bin" / "demo-small.en-de"


def lines(text: str) -> dict[str, str]:
    """The lines of a report, by the first word of each; its last lines are commands."""
    words = [line.split(maxsplit=1) for line in text.splitlines()]
    return {line[0]: line[1] for line in words if len(line) == 2}


@pytest.mark.parametrize(
    "given",
    [
        [DEMO],
        [SMALL, "--text", "Two men sit."],
        [DEMO / "model.pt", DEMO, "--drafter-path", DEMO / "heads.pt"],
        [DEMO / "ibdecoder.pt", DEMO],
        [DEMO / "drafter.pt", DEMO],
    ],
    ids=["demo", "small", "heads", "ibdecoder", "block"],
)
def test_the_report_is_the_same_without_torch_and_fairseq(
    given: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    done = alone("doctor", *given)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert paradec(["doctor", *map(str, given)]) == 0
    found, wanted = lines(done.stdout), lines(capsys.readouterr().out)
    for extra in ("torch", "fairseq"):
        assert wanted.pop(extra).startswith("installed: ")
        assert found.pop(extra).startswith(f"lacks {extra}: ")
    if "packed" in wanted:  # the first of both may have packed the weights for the second
        found, wanted = (
            told | {"packed": told["packed"].replace("to be kept in", "in")}
            for told in (found, wanted)
        )
    assert found == wanted
    assert {*extras.ADDS} - {"torch", "fairseq"} <= found.keys()


def test_a_folder_translates_by_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert paradec(["doctor", str(DEMO)]) == 0
    found = lines(capsys.readouterr().out)
    assert found["model"] == "transformer, 2,341,888 parameters"
    assert found["processing"] == "tokenizer moses, BPE subword_nmt"
    assert found["rules"] == "none of its own"
    assert found["used"] == "auto_fast in fp32, by native passes, without torch"
    assert found["translation"].startswith("'A dog runs.': 'Ein Hund rennt.', 5 tokens in ")
    assert found["engine"].startswith("native, instruction set ")


def test_packed_weights_are_found_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kept, "user_folder", lambda name: tmp_path / name)
    told = []
    for _ in range(2):
        assert paradec(["doctor", str(SMALL)]) == 0
        told.append(lines(capsys.readouterr().out)["packed"])
    assert told[0].startswith(f"fp32: to be kept in the cache, {tmp_path}")
    assert told[1].startswith(f"fp32: in the cache, {tmp_path}")
    assert paradec(["doctor", str(DEMO)]) == 0
    assert "anew: the model is small" in lines(capsys.readouterr().out)["packed"]


@pytest.mark.parametrize(
    ("spoil", "packed", "said"),
    [
        (cut("model.pt", -1), None, "model.pt has another sha256"),
        (lose("dict.de.txt"), None, "dict.de.txt'; allowed: files that are in "),
        (put("paradec.json", b"{"), None, "paradec.json'; allowed: a JSON object"),
        (cut("model.pt", 1000), "model.pt", "model.pt"),
        (cut("drafter.pt", 1000), "drafter.pt", "drafter.pt"),
        (put("codes.bpe", b"\xff\n"), "codes.bpe", "--bpe-codes"),
        (put("dict.de.txt", b"\xff\n"), "dict.de.txt", "dict.de.txt"),
    ],
    ids=["changed", "lost", "no JSON", "model", "drafter", "codes", "dictionary"],
)
def test_a_damaged_folder_is_named_with_and_without_them(
    spoil: Spoil,
    packed: str | None,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """``packed``: a file that was damaged before paradec.json was written."""
    for file in DEMO.iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)
    spoil(tmp_path)
    if packed is not None:
        rehash(tmp_path, packed)
    done = alone("doctor", tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert said in done.stderr and not done.stdout
    assert paradec(["doctor", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert said in told.err and not told.out


def test_a_model_that_native_passes_do_not_know_is_read_by_fairseq(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = task_for("adaptive_softmax")
    for language in ("en", "de"):
        task.target_dictionary.save(str(tmp_path / f"dict.{language}.txt"))
    languages = {"source_lang": "en", "target_lang": "de"}
    path = tmp_path / "model.pt"
    save_drafter(task, tiny_model(task, "adaptive_softmax"), path, "transformer", **languages)
    assert paradec(["doctor", str(path), str(tmp_path)]) == 0
    found = lines(capsys.readouterr().out)
    assert found["greedy"].startswith("fits") and found["beam"].startswith("fits")
    assert "unknown" not in found["dictionaries"] and found["encoder"].startswith("2 layers, ")
    done = alone("doctor", path, tmp_path)
    said = f"{path}: its softmax is adaptive: it needs fairseq_paradec[fairseq]\n"
    assert (done.returncode, done.stderr) == (2, f"paradec doctor: error: {said}")


def test_data_without_languages_or_dictionaries_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["doctor", str(DEMO / "model.pt"), str(tmp_path)]
    given = f"paradec doctor: error: DATA: got '{tmp_path}'; allowed: a folder "
    assert paradec(words) == 2
    assert capsys.readouterr().err.startswith(f"{given}whose files name its languages")
    (tmp_path / "test.en-de.en.bin").touch()
    assert paradec(words) == 2
    assert capsys.readouterr().err.startswith(f"{given}with dict.en.txt")


def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("no model\n", "utf-8")
    done = alone("doctor", path, DEMO)
    said = f"paradec doctor: error: {path}: got a file that is cut short, or no model file; allowed"
    assert done.returncode == 2 and done.stderr.startswith(said) and not done.stdout
