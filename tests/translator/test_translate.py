"""Model folders: made, read, and plain text translated by them as fairseq-interactive does."""

import contextlib
import copy
import json
import multiprocessing
import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from fairseq.models.transformer import TransformerModel
from support.commands import DEMO, PLUGIN, Spoil, cut, fairseq, lines_of, lose, put, succeed

import fairseq_paradec
from fairseq_paradec import records
from fairseq_paradec.batch import Batch
from fairseq_paradec.cli import translate
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.config import LARGEST
from fairseq_paradec.engine.settings import usable_device
from fairseq_paradec.errors import UsageError
from fairseq_paradec.plugin.tasks.loading import decoder, load_paths
from fairseq_paradec.translator.model_folder import new_folder
from fairseq_paradec.translator.pipe import Pipe
from fairseq_paradec.translator.text_processing import WORD, _split
from fairseq_paradec.translator.translation import Translation, telling, translation_of
from fairseq_paradec.translator.translator import Translator
from fairseq_paradec.utf8 import bare

#: Lines of several lengths, blank ones, symbols that Moses escapes, and one beyond the positions.
TEXT = [
    "Two men sit on a bench in the park and eat ice cream.",
    "\ufeff",  # a byte order mark, as inside joined files, is no text
    "A \ufeffdog runs.",
    "  \t ",
    'A "dog\'s" ball & <b> | 3.5 [km] away!',
    " \u201eEin H\u00fcndchen\u201c 東京 ",
    "a " * 1100,
    "Three children play with a red ball on the beach.",
    "A man.",
    "",
    "Dogs; cats -- birds.",
]
FILES = ("dict.en.txt", "dict.de.txt", "model.pt", "drafter.pt", "codes.bpe", "paradec.json")
#: What ``paradec pack`` makes of them.
PACKED = tuple(name.replace(".pt", ".safetensors") for name in FILES)


def packing(data: Path, out: Path, *more: str) -> list[str]:
    """The words of ``paradec pack`` for the demo's files in a folder."""
    models = ("--path", str(data / "model.pt"), "--drafter-path", str(data / "drafter.pt"))
    bpe = ("--tokenizer", "moses", "--bpe", "subword_nmt", "--bpe-codes", str(data / "codes.bpe"))
    return ["pack", str(data), str(out), "-s", "en", "-t", "de", *models, *bpe, *more]


def demo_copy(folder: Path) -> Path:
    """A folder with the files of the demo's model folder, which a test may spoil."""
    folder.mkdir()
    for name in FILES:
        shutil.copy(DEMO / name, folder / name)
    return folder


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path):
    """But not what one that lives is making, nor a hidden folder of the user's."""
    out, own = tmp_path / "model", tmp_path / ".model.settings"
    own.mkdir()
    child = os.fork()
    if child == 0:
        with new_folder(out) as made:
            (made / "model.pt").write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    (dead,) = {*tmp_path.iterdir()} - {own}
    with new_folder(tmp_path / "other"):
        assert dead.is_dir()  # it is of another model
    with pytest.raises(UsageError), new_folder(out) as slow:
        assert not dead.exists()
        with new_folder(out) as fast:
            assert slow.is_dir() and slow != fast
            (fast / "model.pt").touch()
    assert {path.name for path in tmp_path.iterdir()} == {"model", "other", ".model.settings"}


@pytest.fixture(scope="module")
def packed(tmp_path_factory) -> Path:
    """The demo, packed into a new folder."""
    out = tmp_path_factory.mktemp("packed") / "model"
    assert paradec(packing(DEMO, out)) == 0
    return out


@pytest.fixture(scope="module")
def stock(packed, tmp_path_factory):
    """What fairseq-interactive says to TEXT, by the packed folder."""
    text = tmp_path_factory.mktemp("stock") / "text"
    text.write_bytes("\r\n".join(TEXT).encode())
    flags = ("--path", packed / "model.safetensors", "-s", "en", "-t", "de", "--beam", "1", "--cpu")
    flags += ("--buffer-size", "4", "--batch-size", "2")
    flags += ("--tokenizer", "moses", "--bpe", "subword_nmt", "--bpe-codes", packed / "codes.bpe")
    return succeed(fairseq("interactive", packed, "--user-dir", PLUGIN, "--input", text, *flags))


@pytest.fixture(scope="module")
def wanted(stock) -> list[str]:
    """fairseq-interactive's translations of TEXT."""
    return [line.split("\t")[2] for line in lines_of(stock.stdout, "D")]


@pytest.fixture(scope="module")
def loaded(packed):
    return fairseq_paradec.load(packed)


def test_a_packed_folder_has_its_files_and_nothing_is_beside_it(packed, tmp_path):
    assert {path.name for path in packed.parent.iterdir()} == {packed.name}
    assert {path.name for path in packed.iterdir()} == {*PACKED}
    data = demo_copy(tmp_path / "data")
    (data / "paradec.json").unlink()
    assert paradec(packing(data, data)) == 0  # which writes this file alone
    assert {path.name for path in data.iterdir()} == {*FILES}
    assert (data / "paradec.json").read_bytes() == (DEMO / "paradec.json").read_bytes()


def test_a_folder_is_packed_into_a_new_or_empty_one(packed, tmp_path):
    file = tmp_path / "file"
    file.write_text("a")
    assert paradec(packing(DEMO, packed)) == paradec(packing(DEMO, file)) == 2


def test_interactive_reads_a_packed_folder(stock, wanted):
    """It has a line for every sentence, and says which are empty or too long."""
    assert len(wanted) == len(TEXT) and wanted[2].startswith("Ein Hund")
    assert "sentence 1 is empty; its output is empty" in stock.stderr
    assert re.search(r"sentence 6 \(.* takes 1024; its output is empty", stock.stderr)


def test_the_hub_and_ensembles_take_a_model_file(packed, wanted):
    """The languages are those of the folder."""
    file, names = "model.safetensors", {"tokenizer": "moses", "bpe": "subword_nmt"}
    names["bpe_codes"] = str(packed / "codes.bpe")
    hub = TransformerModel.from_pretrained(str(packed), file, str(packed), **names)
    assert [hub.translate(TEXT[0], beam=1), hub.translate(TEXT[7], decoding="hgj")] == [
        wanted[0],
        wanted[7],
    ]
    models, task, _ = load_paths([str(packed / file), str(DEMO / "model.pt")], data=str(packed))
    batch = Batch(hub.encode(TEXT[0])[None].numpy())
    both, one = (
        decoder(task, some, decoding="greedy").decode(batch)[0][0]["tokens"].tolist()
        for some in (models, models[:1])
    )
    assert both == one and len({id(model) for model in models}) == 2


@pytest.mark.parametrize(("source", "decoding"), [("file", "gad"), ("standard input", "greedy")])
def test_text_is_translated_as_by_interactive(
    source, decoding, packed, wanted, tmp_path, capsys, caplog, monkeypatch
):
    text = tmp_path / "text"
    text.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(TEXT).encode())
    few = ["--batch-size", "2", "--buffer-size", "4", "--decoding", decoding]
    given = [str(text)] if source == "file" else []
    with text.open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert paradec(["translate", "--model", str(packed), *few, *given]) == 0
    assert capsys.readouterr().out.split("\n") == [*wanted, ""]
    assert "sentence 6 (a a a" in caplog.text and "its output is empty" in caplog.text


def test_python_translates_as_interactive(loaded, wanted):
    assert loaded.translate(TEXT, decoding="hgj", max_tokens=30) == wanted


@pytest.mark.parametrize("decoding", ["greedy", "self_draft", "multiword_beam"])
def test_a_line_is_told_when_it_is_done_while_others_are_written(decoding, loaded):
    """Not by every decoder; nothing depends on that, and the one that is too long is not told."""
    told: list[tuple[int, Translation]] = []
    ends = [partial(lambda n, one: told.append((n, one)), number) for number in range(len(TEXT))]
    found = list(loaded.results(TEXT, on_finish=ends, decoding=decoding))
    assert found == list(loaded.results(TEXT, decoding=decoding))
    assert all(one is found[number] for number, one in told)
    lines = [number for number, _ in told]
    if decoding == "multiword_beam":
        assert lines == []
    else:
        assert set(lines) == {n for n, one in enumerate(found) if not one.problem}
        assert found[lines[0]].passes < found[lines[-1]].passes


@pytest.mark.parametrize("decoding", ["greedy", "self_draft", "hgj", "beam"])
def test_lines_enter_a_batch_that_is_written(decoding, loaded):
    """Not by every decoder; they are told, and not yielded."""
    lines = [line for line in TEXT if bare(line)]
    first, rest, told = lines[:2], lines[2:] * 2 + [""], []

    def more(most):
        entering, rest[:] = rest[:most], rest[most:]
        return [
            (line, partial(lambda line, one: told.append((line, one)), line)) for line in entering
        ]

    found = list(loaded.results(first, admit=more, decoding=decoding))
    alone = dict(zip(lines, loaded.results(lines, decoding=decoding), strict=True))
    if decoding == "beam":
        assert told == [] and [one.text for one in found] == [alone[line].text for line in first]
    else:
        alone[""] = Translation("", None, "is empty")
        assert (
            found == [alone[line] for line in first]
            and rest == []
            and len(told) == 2 * len(lines) - 3
        )
        assert all(one == alone[line] for line, one in told)


def test_lines_enter_only_what_is_one_batch(loaded):
    lines = ["A dog runs.", "A man.", "Two men sit."]

    def more(most: int) -> list[Any]:
        raise AssertionError("it is asked for more")

    assert len(list(loaded.results(lines, 2, admit=more, decoding="greedy"))) == 3
    with pytest.raises(AssertionError):
        list(loaded.results(lines, 3, admit=more, decoding="greedy"))
    # A beam's next best are of all lines, also if those are told early, and none enters.
    ends = [lambda line: None] * 3
    rows = loaded.results(
        lines, others=1, beam=2, decoding="self_draft", on_finish=ends, admit=more
    )
    assert [len(row.others) for row in rows] == [1, 1, 1]


def test_lines_are_read_as_many_as_are_sorted_together(loaded):
    lines = iter(["A dog runs.", "A man.", "Two men sit."])
    results = loaded.results(lines, buffer_size=2, decoding="greedy")
    assert next(results).text == "Ein Hund rennt." and [*lines] == ["Two men sit."]


@pytest.mark.parametrize("name", ["drafts", "on_pass", "on_finish"])
@pytest.mark.parametrize("buffer_size", [1, 2, 4])
def test_lists_beside_the_lines_are_as_long_as_these(name, buffer_size, loaded):
    nothing = {"drafts": ""}.get(name)
    for more, fits in ((0, True), (-1, False), (1, name != "drafts")):
        rows = loaded.results(
            ["A man."] * 2,
            buffer_size=buffer_size,
            decoding="greedy",
            **{name: [nothing] * (2 + more)},
        )
        with contextlib.nullcontext() if fits else pytest.raises(UsageError, match="one for each"):
            assert len(list(rows)) == 2


def test_a_twin_has_decoders_of_its_own(loaded):
    twin = loaded.twin()
    options = {"decoding": "greedy"}
    assert twin.generator(options) is twin.generator(options) is not loaded.generator(options)
    assert twin.models[0] is loaded.models[0]


def test_what_became_of_a_draft_is_counted_with_its_end():
    best = {"score": -1.0, "tokens": [4, 5, 6, 2], "steps": 2}
    best |= {"num_accepted": [1, 2, 1], "given": [True, False, True]}
    other = {"score": -2.0, "tokens": [4, 2]}

    def row(hypos: list[Any], draft: list[int] | None) -> Translation:
        return translation_of(hypos, lambda hypo: str(hypo["tokens"]), draft)

    others: dict[str, Any] = {"others": ("[4, 2]",), "other_scores": (-2.0,)}
    assert row([best, other], [7, 8, 9]) == Translation(
        "[4, 5, 6, 2]", -1.0, None, 2, accepted=2, rejected=2, tokens=4, **others
    )
    assert row([best], None)[4:6] == row([best], [])[4:6] == (0, 0)
    assert row([best], [7])[4:6] == (2, 0)  # the token and the end are accepted
    assert row([best | {"num_accepted": [1, 2, 2]}], [7])[4:6] == (3, 0)
    assert row([{"problem": "is empty"}], [7]) == Translation("", None, "is empty")


def test_decoders_of_many_options_are_not_all_kept():
    model = fairseq_paradec.load(DEMO)
    for longest in range(5, 40):
        text = model.translate("A dog runs.", decoding="greedy", max_len_b=longest)
        assert text == "Ein Hund rennt." and len(model._generators) <= 32
    last = model.generator({"decoding": "greedy", "max_len_b": 39})
    assert last is model.generator({"decoding": "greedy", "max_len_b": 39})


def test_one_sentence_gives_one_translation(loaded):
    assert loaded.translate("A dog runs.") == "Ein Hund rennt."
    assert loaded.translate("") == "" and loaded.translate(["A dog runs."]) == ["Ein Hund rennt."]


def test_a_watch_is_told_each_pass_once():
    said: list[Any] = []
    tell = telling(said.append, lambda token: f"w{token}")
    passes = [Mock(**{"as_json.side_effect": lambda words, n=n: words(n)}) for n in range(4)]
    for count in (1, 1, 3, 4):
        tell(passes[:count])
    assert said == ["w0", "w1", "w2", "w3"] and telling(None, str) is None


def test_no_text_is_no_translation(loaded):
    assert loaded.translate([]) == []
    assert loaded.translate(["", " "]) == ["", ""]


def test_python_chooses_the_fastest_decoder(loaded):
    assert loaded.generator({}).config.decoding == "auto_fast"


def test_a_very_long_word_is_cut(loaded):
    assert loaded.encode("ab" * 10**6).split()[1:] == ["b", "a"] * 4999 + ["b"]
    for length, words in ((WORD - 1, 1), (WORD, WORD)):
        assert len(_split("a" * length, None, lambda line: line).split()) == words


@pytest.mark.parametrize(
    ("lines", "options", "said"),
    [
        (TEXT, {"beem": 1}, "'beem'; .* as beam"),
        (TEXT, {"buffer_size": 0}, "got 0; .* 1"),
        (TEXT, {"max_tokens": LARGEST + 1}, f"to {LARGEST}"),
        (TEXT, {"others": -1}, "got -1; .* 0 up"),
        ([b"a"], {}, "list of sentences"),
        (["a"], {"drafts": ["b"], "decoding": "beam"}, "got --decoding beam$"),
    ],
)
def test_a_mistake_in_python_is_named(lines, options, said, loaded):
    with pytest.raises(UsageError, match=said):
        loaded.translate(lines, **options)


def test_a_model_folder_needs_no_network(monkeypatch):
    def refuse(*words: object) -> None:
        raise AssertionError(f"the network is asked: {words}")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    translations = fairseq_paradec.load(DEMO).translate(["A dog runs."], decoding="gad")
    assert translations == ["Ein Hund rennt."]


def test_finished_lines_survive_an_interruption(capsys, monkeypatch):
    def typed(files):
        yield from TEXT[:3]
        raise KeyboardInterrupt

    monkeypatch.setattr(translate, "read_lines", typed)
    words = ["translate", "--model", str(DEMO), "--decoding", "greedy", "--buffer-size", "2"]
    assert paradec(words) == 130
    found = capsys.readouterr().out.split("\n")
    assert len(found) == 3 and found[0].startswith("Zwei Männer") and found[1:] == ["", ""]


def test_pipes_and_standard_input_are_files(tmp_path, capsys, monkeypatch):
    """Read once: by the names that a shell gives to <(...), and - among others."""
    plain = tmp_path / "plain"
    plain.write_text("A man.\n")
    pipes = []
    for text in ("A dog runs.\n", "A man.\n", "Ein Hund.\n" * 3):
        ours, theirs = os.pipe()
        os.write(theirs, text.encode())
        os.close(theirs)
        pipes.append(ours)
    words = ["translate", "--model", str(DEMO), "--decoding", "greedy", f"/dev/fd/{pipes[0]}"]
    words += ["-", str(plain), "--drafts", f"/dev/fd/{pipes[2]}"]
    with open(pipes[1]) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert paradec(words) == 0
    dog, *men, end = capsys.readouterr().out.split("\n")
    assert dog == "Ein Hund rennt." and men[0].startswith("Ein Mann") and end == ""
    assert len(men) == 2 and men[0] == men[1]
    for pipe in (pipes[0], pipes[2]):
        os.close(pipe)


def test_a_program_that_waits_for_each_answer_has_it(tmp_path):
    """Also for several lines at once, a letter in two parts, and a last line without its end."""
    words = ["translate", "--model", str(DEMO), "--decoding", "greedy"]
    command = [sys.executable, "-m", "fairseq_paradec", *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as asked:
        assert asked.stdin is not None and asked.stdout is not None

        def answers(*parts: bytes, count: int = 1) -> list[str]:
            for part in parts:
                asked.stdin.write(part)
                asked.stdin.flush()
                time.sleep(0.05 * (len(parts) > 1))
            return [asked.stdout.readline().decode() for _ in range(count)]

        assert answers(b"A dog runs.\n") == ["Ein Hund rennt.\n"]
        assert answers("A caf\u00e9.\n".encode()[:6], "A caf\u00e9.\n".encode()[6:])[0].endswith(
            "\n"
        )
        assert answers(b"\nA dog runs.\nA dog", count=2) == ["\n", "Ein Hund rennt.\n"]
        asked.stdin.write(b" runs.")
        asked.stdin.close()
        assert asked.stdout.read().decode() == "Ein Hund rennt.\n"
    assert asked.returncode == 0


def test_records_have_the_rules_of_the_search(tmp_path):
    words = ["translate", "--model", str(DEMO), "--decoding", "self_draft", "--text", "A dog."]
    rules = ["--repetition-penalty", "1.5", "--no-repeat-ngram-size", "2"]
    for more in ([], rules):
        file = tmp_path / f"{len(more)}.jsonl"
        assert paradec([*words, *more, "--stats-file", str(file)]) == 0
        (record,) = (json.loads(line) for line in file.read_text().splitlines())
        assert record["lossless"]
        wanted = {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2} if more else None
        assert record.get("rules") == wanted


LINES = ["A dog runs.  Mr. Smith sleeps!", "", "....", "Two boys play football.", "A man sits"]


def test_sentences_of_a_line_are_translated_one_by_one(loaded, tmp_path, capsys):
    """As each alone, with the space between them; a line without letters stays."""
    given, drafts = tmp_path / "given", tmp_path / "drafts"
    given.write_text("\r\n".join(LINES))
    words = ["translate", "--model", str(DEMO), "--decoding", "greedy", str(given)]
    assert paradec([*words, "--split"]) == 0
    said = capsys.readouterr()
    alone = ["A dog runs.", "Mr. Smith sleeps!", "Two boys play football.", "A man sits"]
    dog, man, boys, last = loaded.translate(alone, decoding="greedy")
    wanted = [f"{dog}  {man}", "", "....", boys, last]
    assert said.out.split("\n") == [*wanted, ""] and not said.err
    drafts.write_text("".join(f"{line}\n" for line in [*wanted[:4], ""]))
    assert paradec([*words, "--split", "--drafts", str(drafts), "--buffer-size", "2"]) == 0
    assert capsys.readouterr().out.split("\n") == [*wanted, ""]
    for together in (1, 2, 9):
        texts = loaded.texts(LINES, together=together, decoding="greedy")
        assert [text.text for text in texts] == wanted


def test_lines_of_several_sentences_are_counted(tmp_path, capsys):
    given = tmp_path / "given"
    given.write_text("\n".join([*LINES[1:], *LINES, "Who? Me!", "Mr. Smith sits."]))
    words = ["translate", "--model", str(DEMO), "--decoding", "greedy", str(given)]
    assert paradec(words) == 0
    said = capsys.readouterr().err
    assert said.startswith("lines with several sentences: 2, line 5 the first; ")
    assert said.count("\n") == 1
    given.write_text("\n".join(LINES[1:]))
    assert paradec(words) == 0 and not capsys.readouterr().err


def test_lines_of_a_pipe_that_have_come_are_decoded_together(monkeypatch):
    monkeypatch.setattr("fairseq_paradec.translator.pipe.QUIET", 0.0)
    ours, theirs = os.pipe()
    os.write(theirs, b"a\r\nb\nc\nd")
    lines = Pipe(ours)
    assert lines.take(2) == ["a\r\n", "b\n"] and lines.take(5) == ["c\n"]
    os.write(theirs, b"e\n")
    os.close(theirs)
    assert list(lines) == ["de\n"] and lines.take(3) == []
    os.close(ours)
    ours, theirs = os.pipe()
    os.write(theirs, b"a\nb\xff\n")
    lines = Pipe(ours)
    assert lines.take(2) == ["a\n"]
    with pytest.raises(
        UsageError, match=r"FILE: got 'standard input'; allowed: text in UTF-8; b'b"
    ):
        lines.take(2)
    for end in (ours, theirs):
        os.close(end)


def test_a_file_named_like_standard_input_takes_nothing_from_it(tmp_path, capsys, monkeypatch):
    """ "-" is standard input, and "./-" that file."""
    monkeypatch.chdir(tmp_path)
    Path("-").write_text("A man.\n")
    given = tmp_path / "given"
    given.write_text("A dog runs.\n")
    words = ["translate", "--model", str(DEMO), "--decoding", "greedy", "-", "./-"]
    with given.open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert paradec(words) == 0
    dog, man, end = capsys.readouterr().out.split("\n")
    assert dog == "Ein Hund rennt." and man.startswith("Ein Mann") and end == ""


def test_a_limit_below_the_minimal_length_is_refused_by_fairseqs_search_too(loaded):
    """With a rule that is its alone; else the search is this package's."""
    options = {"decoding": "beam", "beam": 2, "diverse_beam_groups": 1}
    with pytest.raises(UsageError, match="--max-len-a: got '0.1 with --max-len-b 0'"):
        loaded.translate(["A dog runs."], **options, max_len_a=0.1, max_len_b=0)


@pytest.mark.parametrize(
    ("words", "decoding"),
    [
        ("--text A", "self_draft"),
        ("--text A --beam 3", "self_draft"),
        ("--text A --text B", "auto_fast"),
        ("--text A --engine torch", "auto_fast"),
        ("--text A --speed-profile {out}/speed.json", "auto_fast"),
        ("--text A --decoding greedy", "greedy"),
    ],
)
def test_a_lone_text_is_not_measured_on(words, decoding, tmp_path):
    stats = tmp_path / "stats.jsonl"
    words = f"translate --model {DEMO} {words} --stats-file {stats}".format(out=tmp_path)
    assert paradec(words.split()) == 0
    assert {record["decoding"] for _, record in records.read(str(stats), records.STATS)} == {
        decoding
    }


@pytest.mark.parametrize("options", [{}, {"beam": 1}, {"beam": 9, "lenpen": 0.4, "unkpen": 2.0}])
def test_the_beam_search_is_fairseqs_by_native_passes(options, loaded, monkeypatch):
    """Texts and scores; fairseq's own search has a rule that is never broken."""
    lines = [line for line in TEXT if bare(line)]
    ours, auto = (
        list(loaded.results(lines, others=4, decoding=decoding, **options))
        for decoding in ("beam", "auto")
    )
    rule = {"no_repeat_ngram_size": 99}
    own = "fairseq_paradec.translator.translator.native_decoding"
    monkeypatch.setattr(own, lambda options, models: options["decoding"])
    theirs = list(loaded.results(lines, others=4, decoding="beam", **options, **rule))
    assert ours == auto and len(ours[0].others) == min(options.get("beam", 5), 5) - 1
    for a, b in zip(ours, theirs, strict=True):
        assert (a.text, a.others, a.problem) == (b.text, b.others, b.problem)
        assert a.score == pytest.approx(b.score, abs=1e-5)


def test_the_best_outputs_and_their_scores_are_printed(loaded, capsys):
    lines = ["A dog runs.", "", "Two men sit."]
    words = ["translate", "--model", str(DEMO), *(f"--text={line}" for line in lines)]
    words += ["--decoding", "beam", "--beam", "4", "--min-len", "5"]
    assert paradec([*words, "--nbest", "3", "--scores"]) == 0
    printed = capsys.readouterr().out.splitlines()
    results = loaded.results(lines, others=3, decoding="beam", beam=4, min_len=5)
    wanted = []
    for result in results:
        scores = [result.score, *result.other_scores]
        assert scores == sorted(scores, reverse=True) if result.text else scores == [None]
        both = [*zip([result.text, *result.others], scores, strict=True)][:3]
        wanted += [f"{score:.4f}\t{text}" for text, score in both] if result.text else ["\t"] * 3
    assert printed == wanted
    assert paradec(words) == 0
    assert capsys.readouterr().out.splitlines() == [
        line.partition("\t")[2] for line in printed[::3]
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--nbest 2", "--nbest 2 needs --beam 2 or more; it is 1"),
        ("--nbest 6 --decoding beam", "--nbest 6 needs --beam 6 or more; it is 5"),
        ("--nbest 2 --format html", "--nbest 2 excludes --format"),
        ("--scores --format html", "--scores excludes --format"),
        ("--scores --split", "--scores excludes --split"),
        ("--split --format html", "--split excludes --format"),
    ],
)
def test_what_has_no_best_outputs_is_refused(words, said, capsys):
    assert paradec(["translate", "--model", str(DEMO), "--text", "a", *words.split()]) == 2
    assert said in capsys.readouterr().err


def test_flags_of_native_passes_are_of_the_beam_search_too(loaded):
    """fairseq's own search would ignore them, and refuses them."""
    lines = ["A dog runs.", "Two men sit."]
    options = {"beam": 3, "engine_dtype": "int8"}
    wanted = loaded.translate(lines, decoding="multiword_beam", **options)
    for decoding in ("beam", "auto"):
        assert loaded.translate(lines, decoding=decoding, **options) == wanted
    with pytest.raises(UsageError, match="'int8', which --decoding beam does not use"):
        loaded.translate(lines, decoding="beam", match_source_len=True, **options)


@pytest.mark.parametrize("device", ["cpu:", "cuda:01", "cuda:\u0661", "gpu"])
def test_a_device_that_torch_cannot_read_is_refused(device):
    with pytest.raises(UsageError, match="--device"):
        usable_device(device)


def test_a_loaded_model_is_pickled_and_copied(loaded, tmp_path, monkeypatch):
    """By its folder, which is loaded again, from any folder; a copy shares the weights."""
    wanted = loaded.translate(TEXT[:3], decoding="greedy")
    relative = Translator(Path(os.path.relpath(loaded.path)))
    kept = pickle.dumps(relative)
    assert len(kept) < 1000
    monkeypatch.chdir(tmp_path)
    for again in (pickle.loads(kept), copy.deepcopy(loaded)):
        assert again.models[0] is not loaded.models[0] and again.device == loaded.device
        assert again.translate(TEXT[:3], decoding="greedy") == wanted
    assert copy.copy(loaded).models[0] is loaded.models[0]


@pytest.mark.slow
def test_a_pool_of_processes_translates_by_a_model_that_is_sent(loaded):
    work = partial(loaded.translate, decoding="greedy")
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        assert [*pool.map(work, [[line] for line in TEXT[:3]])] == [[one] for one in work(TEXT[:3])]


def test_a_model_with_its_own_method_is_decoded_by_it(tmp_path, capsys):
    data = demo_copy(tmp_path / "data")
    shutil.copy(DEMO / "ibdecoder.pt", data / "model.pt")
    words = packing(data, data)
    del words[words.index("--drafter-path") : words.index("--tokenizer")]
    assert paradec(words) == 0
    assert {path.name for path in data.iterdir()} == {*FILES}
    assert paradec(["translate", "--model", str(data), "--text", TEXT[2], "--text", ""]) == 0
    assert capsys.readouterr().out.endswith("Ein Hund rennt .\n\n".replace(" .", "."))


def key(name: str, value: object) -> Spoil:
    """Change a key of a folder's paradec.json."""
    return put("paradec.json", lambda was: json.dumps(json.loads(was) | {name: value}).encode())


#: What is done to a folder, and the message.
SPOILT = {
    "no json": (lose("paradec.json"), "--model: got '{}'; allowed: a"),
    "list": (put("paradec.json", b"[]"), "{}/paradec.json: format: got []; allowed: 1"),
    "newer": (key("format", 2), "{}/paradec.json: format: got 2; allowed: 1"),
    "key": (key("heads", "h.pt"), "{}/paradec.json: got 'heads'; allowed: the keys format, source"),
    "outside": (key("drafter", "../d.pt"), "{}/paradec.json: drafter: got '../d.pt'; allowed: nu"),
    "bpe": (key("bpe", {"name": "x"}), "{}/paradec.json: bpe: got {{'name': 'x'}}; allowed: null"),
    "tokens": (key("tokenizer", "mosses"), "--tokenizer: got 'mosses'; allowed: moses"),
    "setting": (key("settings", {"beem": 2}), "translate(): got 'beem'"),
    "lost": (lose("drafter.pt"), "got 'drafter.pt'; allowed: files"),
}


@pytest.mark.parametrize("kind", SPOILT)
def test_a_spoilt_folder_is_named(kind, tmp_path, capsys):
    spoil, said = SPOILT[kind]
    spoil(demo_copy(tmp_path / "data"))
    assert paradec(["translate", "--model", str(tmp_path / "data"), "--text", "a"]) == 2
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == "" and len(lines) == 1, captured.err
    assert said.format(tmp_path / "data") in lines[0]


#: What is done to the files that are packed, more flags, and the message.
UNPACKED = {
    "size": (put("dict.en.txt", lambda was: was + b"1more 1\n"), "", "--path: .*7944 .* has 7945"),
    "torn": (cut("model.pt", 9999), "", "--path: got '{}/data/model.pt', .*trunc"),
    "other": (put("model.pt", (DEMO / "heads.pt").read_bytes()), "", "--path: .*heads"),
    "codes": (put("codes.bpe", b"\xff"), "", "--bpe subword_nmt needs its file"),
    "lost": (lose("dict.de.txt"), "", "DATA: .* with dict.de.txt"),
    "drafter": (put("drafter.pt", b""), "", "--drafter-path: got .* truncated or no"),
    "bpe": (lambda folder: None, "--bpe sentencepiece", "--bpe-codes .* needs its"),
    "no file": (lambda folder: None, "--bpe-codes no", "--bpe-codes: got 'no'; allowed: a file"),
}


@pytest.mark.parametrize("kind", UNPACKED)
def test_nothing_is_left_of_a_failed_packing(kind, tmp_path, capsys):
    spoil, flags, said = UNPACKED[kind]
    data = demo_copy(tmp_path / "data")
    (data / "paradec.json").unlink()
    spoil(data)
    assert paradec(packing(data, tmp_path / "out", *flags.split())) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and len(captured.err.splitlines()) == 1, captured.err
    assert re.match("paradec pack: error: " + said.format(tmp_path), captured.err), captured.err
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
