"""The data recipes, scripts/prepare_*.sh, run as a user runs them, on text made up here."""

import fcntl
import hashlib
import io
import random
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest
from support.commands import ROOT
from support.recipes import SCRIPTS, contents, kill_at, read, refuse, run, succeed, write

RECIPES = sorted(path.stem for path in SCRIPTS.glob("prepare_*.sh") if path.stem != "prepare_demo")
LANGUAGES, SPLITS = ("en", "de"), ("train", "valid", "test")
#: Files of Multi30k, their sentences, and how they are called in the data folder.
MULTI30K = {
    "train": (60, "train"),
    "val": (8, "valid"),
    "test_2016_flickr": (19, "test"),
    "test_2017_flickr": (5, "test1"),
}


#: A bare Debian has none, and only downloads of data need it.
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")


def sentences(count, letter, seed):
    rng = random.Random(seed)
    text = " ".join([f"{letter}%d"] * 4)
    return [f"No {i}, {text % tuple(rng.choices(range(9), k=4))}." for i in range(count)]


@pytest.fixture(scope="module")
def captions(tmp_path_factory):
    """A small Multi30k."""
    folder = tmp_path_factory.mktemp("captions")
    for seed, (name, (count, _)) in enumerate(MULTI30K.items()):
        write(folder / f"{name}.en.gz", sentences(count, "w", seed))
        write(folder / f"{name}.de.gz", sentences(count, "v", seed))
    return folder


@pytest.fixture(scope="module")
def prepared(captions, tmp_path_factory):
    """The data folder made of it; the path is one that needs quoting."""
    folder = tmp_path_factory.mktemp("made") / "it's here"
    folder.mkdir()
    # DEST starts with a dash, and lies in the current folder.
    said = succeed("prepare_multi30k", "--from", captions, "--vocab", 50, "--", "-d", cwd=folder)
    assert "0 agree, 8 differ" in said and "train.en.gz differs from the published file" in said
    return folder / "-d"


@pytest.mark.parametrize("name", RECIPES)
def test_what_is_missing_is_named(name, tmp_path):
    dest, missing = tmp_path / "dest", tmp_path / "missing"
    place = "--data" if name == "prepare_long" else "--from"
    assert f"({place}): {missing}" in refuse(name, place, missing, dest)
    if name != "prepare_long":
        said = refuse(name, place, tmp_path, dest)  # an empty folder
        assert "missing input file: " in said or "neither train.en.gz nor *.po files" in said
    assert not dest.exists()


def test_mistakes_are_named(captions, tmp_path):
    there = ["--from", captions]
    for args, message in (
        (["DEST"], "where from? give download or --from DIR"),
        ([*there, "--dict", "x"], "--dict needs --codes"),
        ([*there, tmp_path / "a:b"], "DEST: got"),
    ):
        assert message in refuse("prepare_multi30k", *args)
    torn = shutil.copytree(captions, tmp_path / "from")
    write(torn / "val.de.gz", ["one", "two"])
    result = run("prepare_multi30k", "--from", torn, tmp_path / "dest")
    assert result.returncode == 2
    assert "error: fewer lines than its partner: " in result.stderr.splitlines()[-1]


@needs_curl
def test_a_download_that_is_not_there_is_named(tmp_path):
    mirror = tmp_path.as_uri()
    result = run("prepare_iwslt15_envi", "download", "--mirror", mirror, tmp_path / "dest")
    assert result.returncode == 2
    assert f"download {mirror}/train.en" in result.stderr.splitlines()[-1]


def test_a_machine_without_curl_is_told_what_to_do(tmp_path, monkeypatch):
    nothing = tmp_path / "nothing"
    nothing.write_text('command() { [ "$2" != curl ] && builtin command "$@"; }\n')
    monkeypatch.setenv("BASH_ENV", str(nothing))
    said = refuse("prepare_iwslt15_envi", "download", tmp_path / "dest")
    assert "download needs curl; or fetch the files and give --from DIR" in said


@pytest.mark.slow
def test_multi30k(captions, prepared):
    for name, (_, split) in MULTI30K.items():
        for lang in LANGUAGES:
            raw, tok, bpe = (read(prepared / f"{k}/{split}.{lang}") for k in ("raw", "tok", "bpe"))
            assert raw == read(captions / f"{name}.{lang}.gz")
            # This text's only punctuation is a comma and a full stop.
            assert tok == [line.replace(",", " ,").replace(".", " .") for line in raw]
            assert [line.replace("@@ ", "") for line in bpe] == tok
            assert split != "train" or any("@@ " in line for line in bpe)
            assert (prepared / f"{split}.en-de.{lang}.idx").is_file()
    assert len(read(prepared / "codes.bpe")) == 1 + 50
    # One dictionary for both languages, that knows all of the training text.
    assert read(prepared / "dict.en.txt") == read(prepared / "dict.de.txt")
    known = {line.split()[0] for line in read(prepared / "dict.en.txt")}
    assert all(set(line.split()) <= known for line in read(prepared / "bpe" / "train.de"))
    assert not list(prepared.glob(".work*")) and not list(prepared.glob(".text*"))


def test_a_second_run_does_nothing(captions, prepared):
    before = {path: path.stat().st_mtime_ns for path in prepared.rglob("*.*") if path.is_file()}
    said = succeed("prepare_multi30k", "--from", captions, "--vocab", 50, prepared)
    assert said.count(": done before") == 4
    assert {path: path.stat().st_mtime_ns for path in before} == before
    # And nothing of other settings, or of other data, gets into the folder.
    said = refuse("prepare_multi30k", "--from", captions, "--vocab", 51, prepared)
    assert "was made otherwise (was merges 50, is now merges 51)" in said


def test_what_others_have_in_a_folder_is_left_alone(prepared, captions, tmp_path):
    mine = write(tmp_path / "mine" / "raw" / "precious.txt", ["mine"])
    said = refuse("prepare_multi30k", "--from", captions, mine.parent.parent)
    assert "DEST: got" in said and "holds something else (raw)" in said
    assert read(mine) == ["mine"]
    shutil.copytree(captions, tmp_path / "in" / "raw")
    said = refuse("prepare_multi30k", "--from", tmp_path / "in" / "raw", tmp_path / "in")
    assert "--from: got" in said and "lies in DEST" in said
    # Another recipe's folder is another's, too, and so is one in which a recipe is at work.
    copy = shutil.copytree(prepared, tmp_path / "copy")
    said = run("prepare_long", "--data", prepared, copy).stderr
    assert "was made otherwise (was recipe multi30k, is now recipe long)" in said
    with (copy / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said = refuse("prepare_multi30k", "--from", captions, "--vocab", 50, copy)
    assert "another run is at work in" in said and contents(copy) == contents(prepared)


@needs_curl
@pytest.mark.slow
def test_download_checksums_and_kill(captions, prepared, tmp_path):
    dest, files = tmp_path / "dest", sorted(captions.iterdir())
    have = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    good = [f"{checksum}  {name}" for name, checksum in have.items()]
    bad = [line.replace(line[:8], "0" * 8) if "val.de" in line else line for line in good]
    bad = [line for line in bad if "val.en" not in line]
    args = ["download", "--mirror", captions.as_uri(), "--vocab", 50]
    result = run("prepare_multi30k", *args, "--accept", write(tmp_path / "bad", bad), dest)
    assert result.returncode == 2
    assert sorted(result.stdout.splitlines()) == sorted(line for line in good if "val." in line)
    want = "0" * 8 + have["val.de.gz"][8:]
    assert f"val.de.gz: SHA-256 is {have['val.de.gz']}, must be {want}\n" in result.stderr
    assert f"val.en.gz: SHA-256 is {have['val.en.gz']}, must be one that is" in result.stderr
    assert not (dest / "raw").exists() and not (dest / "download" / "val.de.gz").exists()
    # Verified, nothing is fetched again. Killed in the middle of two steps, and taken up there.
    args += ["--accept", write(tmp_path / "good", good), dest]
    said = kill_at("-l de normalize", "prepare_multi30k", *args)
    assert "8 agree, 0 differ" in said and ": download " not in said
    assert not list(dest.glob("*.bin")) and not (dest / "raw").exists()
    said = kill_at("fairseq_cli.preprocess", "prepare_multi30k", *args)
    assert "raw text: done before" in said
    assert "  train.en: done before" in said and "  train.de: 60 lines" in said
    assert not list(dest.glob("*.bin")) and not list(dest.glob("dict.*"))
    assert "split by BPE: done before" in succeed("prepare_multi30k", *args)
    ours, fresh = contents(dest), contents(prepared)
    assert ours.keys() == fresh.keys()
    assert [name for name in ours if ours[name] != fresh[name]] == []


@pytest.mark.slow
def test_tatoeba(tmp_path):
    """All translations of an English sentence in one split, wherever its lines are."""
    source, dest = tmp_path / "from", tmp_path / "dest"
    numbers = [(i, j) for i in range(1500) for j in range(1 + i % 3)]
    pairs = [(f"Say {i} twice{' or more' * (i % 3)}.", f"Sag {i}, {j}-mal.") for i, j in numbers]
    source.mkdir()
    lots = random.Random(3).sample(pairs, len(pairs))
    lines = [f"{en}\t{de}\tCC-BY 2.0 (France) Attribution: x\n" for en, de in lots]
    with zipfile.ZipFile(source / "deu-eng.zip", "w") as archive:
        archive.writestr("deu.txt", "".join(lines))
    args = ["--from", source, "--min-length", 4, "--max-length", 5, dest]
    kill_at("-m sacremoses", "prepare_tatoeba", *args)
    files = {s: [dest / ".text" / "raw" / f"{s}.{lang}" for lang in LANGUAGES] for s in SPLITS}
    made = {split: list(zip(*map(read, sides), strict=True)) for split, sides in files.items()}
    english = {split: {en for en, _ in made[split]} for split in made}
    # "Say 1 twice or more." has 5 words; i % 3 == 0 has 3, too few, and i % 3 == 2 has 7, too many.
    wanted = {(en, de) for en, de in pairs if en.count("or more") == 1}
    assert set.union(*english.values()) == {en for en, _ in wanted}
    assert sum(map(len, english.values())) == len({en for en, _ in wanted})  # none in two splits
    for split in ("valid", "test"):
        assert len(english[split]) == len(made[split]) > 0  # one reference each
        assert set(made[split]) <= wanted
    assert sorted(made["train"]) == sorted(p for p in wanted if p[0] in english["train"])


#: What each message of the fixture comes to; a message without a line here is to be left out.
PYDOCS = """
The list.sort method sorts append()'s list in place.\tEl método list.sort ordena la lista.
See the glossary and the docs, or PEP 8 for *args.\tVea el glosario y la doc., o PEP 8.
This is important and so is that 2*3*4 stays:\tEsto es importante y 2*3*4 se queda:
A tab, a "quote" and a backslash \\ in it.\tUn tab, una "cita" y una barra \\ aquí.
Good after an obsolete fuzzy message, it is.\tBueno tras un mensaje obsoleto, lo es.
""".lstrip()


@pytest.mark.slow
def test_pydocs_from_po(tmp_path):
    checkout = tmp_path / "docs"
    (checkout / "library").mkdir(parents=True)
    po = shutil.copy(ROOT / "tests" / "fixtures" / "pydocs.po", checkout / "library" / "types.po")
    command = [sys.executable, "-m", "fairseq_paradec", "data", "po", po]
    assert subprocess.check_output(command, cwd=ROOT, encoding="utf-8") == PYDOCS
    # The whole way. The generated messages fill the splits.
    more = [f'msgid "Number {i} is one of them."\nmsgstr "{i} es uno."\n' for i in range(200)]
    write(checkout / "more.po", [*more, 'msgid "Too short."\nmsgstr "Breve."\n'])
    kill_at("-m sacremoses", "prepare_pydocs", "--from", checkout, tmp_path / "dest")
    raw = tmp_path / "dest" / ".text" / "raw"
    made = [read(raw / f"{split}.en") for split in SPLITS]
    wanted = [line.split("\t")[0] for line in PYDOCS.splitlines()]
    wanted += [f"Number {i} is one of them." for i in range(200)]
    assert all(made) and sorted(sum(made, [])) == sorted(wanted)


@pytest.mark.slow
def test_long(prepared, tmp_path):
    dest = tmp_path / "it's long"
    said = succeed("prepare_long", "--data", prepared, "--subset", "test", dest)
    assert "test2: 4 lines of 4 sentences, 3 left out" in said  # 19 in all
    for kind, lang in ((kind, lang) for kind in ("raw", "tok", "bpe") for lang in LANGUAGES):
        lines = read(prepared / kind / f"test.{lang}")
        for name, size in (("test", 1), ("test1", 2), ("test2", 4), ("test3", 8)):
            wanted = [" ".join(lines[k : k + size]) for k in range(0, 19 - size + 1, size)]
            assert read(dest / kind / f"{name}.{lang}") == wanted
            assert (dest / f"{name}.en-de.{lang}.bin").is_file()
    for name in ("dict.en.txt", "dict.de.txt", "codes.bpe", "test.en-de.en.bin"):
        assert (dest / name).read_bytes() == (prepared / name).read_bytes()


def pack(path, files):
    """An archive of these files."""
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, lines in files.items():
            data = "".join(f"{line}\n" for line in lines).encode()
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def sgm(lines):
    segments = [f'<seg id="{i}">{line.replace("&", "&amp;")}</seg>' for i, line in enumerate(lines)]
    return ['<refset setid="x"><doc docid="1">', "<p>", *segments, "</p>", "</doc></refset>"]


@pytest.mark.slow
def test_wmt14(prepared, tmp_path):
    """From archives; cleaned up; with the BPE and the dictionary of another data folder."""
    source, dest = tmp_path / "from", tmp_path / "dest"
    # The clean-up drops what is empty, too long, too different.
    english = ["w1 w2.", "   ", "w1 " * 21, "w1 w2\u2028w3 w4 w5 w6 w7 w8 w9"]
    german = ["v1 v2.", "v1.", "w1 " * 21, "v1 v2 v3 v4"]
    test = ["One.", "Q&A <b> now."]
    for archive, name, en, de in (
        ("training-parallel-europarl-v7", "training/europarl-v7.de-en", english, german),
        ("training-parallel-commoncrawl", "commoncrawl.de-en", *[["w1,\u2028w2\tw3"]] * 2),
        ("training-parallel-nc-v9", "training/news-commentary-v9.de-en", *[["a news w4"]] * 2),
    ):
        pack(source / f"{archive}.tgz", {f"{name}.en": en, f"{name}.de": de})
    dev = {f"newstest2013.{lang}": sentences(3, "w", 5) for lang in LANGUAGES}
    dev["newstest2014-deen-src.de.sgm"] = sgm(test)
    dev["newstest2014-deen-ref.en.sgm"] = sgm(reversed(test))
    pack(source / "dev.tgz", {f"dev/{name}": lines for name, lines in dev.items()})
    args = ["--codes", prepared / "codes.bpe", "--dict", prepared / "dict.en.txt"]
    args += ["--max-tokens", 20, "--max-ratio", "2"]
    said = succeed("prepare_wmt14_ende", "--from", source, *args, dest)
    assert "3 of 6 training pairs dropped" in said
    for lang, first in (("de", "v1 v2."), ("en", "w1 w2.")):
        assert read(dest / "raw" / f"train.{lang}") == [first, "w1, w2 w3", "a news w4"]
    assert read(dest / "tok" / "train.en")[-2:] == ["w1 , w2 w3", "a news w4"]
    assert read(dest / "raw" / "valid.en") == sentences(3, "w", 5)
    assert read(dest / "raw" / "test.de") == test == read(dest / "raw" / "test.en")[::-1]
    for name in ("codes.bpe", "dict.en.txt", "dict.de.txt"):
        assert (dest / name).read_bytes() == (prepared / name.replace("de.", "en.")).read_bytes()


def wmt16(source):
    name, europarl = "training-parallel-ep-v8/europarl-v8.ro-en", {"ro": ["Unu."], "en": ["One."]}
    files = {f"{name}.{lang}": lines for lang, lines in europarl.items()}
    pack(source / "training-parallel-ep-v8.tgz", files)
    tu = '<tu><tuv xml:lang="{}"><seg>{}</seg></tuv><tuv xml:lang="{}"><seg>{}</seg></tuv></tu>'
    units = [tu.format("en", "Third &amp; last", "ro", "A treia"), tu.format("en", "x", "tr", "y")]
    xml = ['<?xml version="1.0"?>', "<tmx><body>", *units, "</body></tmx>"]
    write(source / "en-ro.tmx.gz", xml)
    ends = ("src.ro", "ref.en")
    sides = [f"{split}2016-roen-{end}" for split in ("newsdev", "newstest") for end in ends]
    pack(source / "dev.tgz", {f"dev/{side}.sgm": sgm([f"{side}."]) for side in sides})
    return {
        "raw/train.ro": ["Unu.", "A treia"],
        "raw/train.en": ["One.", "Third & last"],
        "raw/valid.ro": ["newsdev2016-roen-src.ro."],
        "raw/test.en": ["newstest2016-roen-ref.en."],
        "tok/train.ro": ["Unu .", "A treia"],
    }


def iwslt15(source):
    """Its tokens stay as they are; there is so much of it that it is worked on in parts."""
    line = "It &apos;s a test-case , isn &apos;t it &quot; yes &quot;"
    many = [f"{line} {i}" for i in range(100_001)]
    files = {"train.en": many, "train.vi": many[::-1]}
    for split, name in (("valid", "tst2012"), ("test", "tst2013")):
        for lang, text in (("en", line), ("vi", "Nó là , ( vâng ) .")):
            files[f"{split}.{lang}"] = [text, name]
            write(source / f"{name}.{lang}", [text, name])
    for name in ("train.en", "train.vi"):
        write(source / name, files[name])
    tok = {f"tok/{name}": lines for name, lines in files.items()}
    plain = "It's a test-case, isn't it \"yes\""
    return tok | {"raw/test.en": [plain, "tst2013"], "raw/valid.vi": ["Nó là, (vâng).", "tst2012"]}


def aspec(source):
    for i in (1, 2, 3):
        write(source / f"train/train-{i}.txt", [f"0.9 ||| A-{i} ||| 1 ||| 日本語{i} ||| No {i}."])
    for name in ("dev", "devtest", "test"):
        write(source / name / f"{name}.txt", [f"A-1 ||| 1 ||| 東京です ||| It is {name}."])
    return {
        "raw/train.ja": ["日本語1", "日本語2", "日本語3"],
        "tok/valid.en": ["It is dev ."],
        "tok/train.ja": ["日本_語1", "日本_語2", "日本_語3"],
        "raw/test.en": ["It is devtest.", "It is test."],
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fill", "script", "options"),
    [
        (wmt16, "wmt16_roen", []),
        (iwslt15, "iwslt15_envi", ["--workers", 2]),
        (aspec, "aspec_jaen", ["--segmenter", r"sed s/\(本\|京\)/\1_/"]),
    ],
)
def test_what_comes_out(fill, script, options, tmp_path):
    """Of a source, the lines of some files."""
    source, dest = tmp_path / "from", tmp_path / "dest"
    wanted = fill(source)
    args = ["--from", source, *options, dest]
    said = kill_at("-m subword_nmt.learn_bpe", f"prepare_{script}", *args)
    assert {name: read(dest / name) for name in wanted} == wanted
    assert script != "iwslt15_envi" or "    part 3 of 3\n" in said
