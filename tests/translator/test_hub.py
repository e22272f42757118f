"""Models by their names: fetched from a server that answers as the hub does, imported, and kept."""

import json
import os
import pty
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import environment
from support.foreign import saved
from support.hub import COMMIT, Hub, running

import fairseq_paradec
from fairseq_paradec.translator import hub as ours
from fairseq_paradec.translator import importing, model_folder

#: A MarianMT model of random weights, with sentencepiece models of the demo's text.
NAME, TEXT = "Owner/opus-mt-en-de", "She sings!"

#: paradec, where nothing is installed that is not needed.
ALONE = """
import sys
sys.modules.update(dict.fromkeys(("torch", "fairseq", "transformers", *sys.argv.pop(1).split())))
from fairseq_paradec.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(name="env")
def an_empty_cache(tmp_path: Path) -> dict[str, str]:
    home = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HF_HOME": str(tmp_path / "hf")}
    return home | {"HF_ENDPOINT": "http://127.0.0.1:9"}  # nobody answers there


def command(*words: object, env: dict[str, str], without: str = "") -> list[str]:
    return [sys.executable, "-c", ALONE, without, *map(str, words)]


def run(*words: object, env: dict[str, str], without: str = "") -> tuple[int, str, str]:
    """Exit status, output and what is said."""
    done = subprocess.run(
        command(*words, env=env, without=without),
        env=environment(env),
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout, done.stderr


def imported(tmp_path: Path) -> list[Path]:
    """The imported models in the cache."""
    models = tmp_path / "cache/fairseq_paradec/models"
    return [path for path in models.iterdir() if path.is_dir()] if models.is_dir() else []


def translate(name: str, env: dict[str, str], *flags: str) -> tuple[int, str, str]:
    words = ("translate", "--model", name, "--text", TEXT, "--decoding", "greedy", *flags)
    return run(*words, env=env)


@pytest.fixture(name="wanted", scope="module")
def what_an_imported_folder_says(tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("import") / "out"
    assert run("import", saved("marian").folder, out, env={})[0] == 0
    (text,) = fairseq_paradec.load(out).translate([TEXT], decoding="greedy")
    assert text
    return f"{text}\n"


def test_from_a_name_to_a_translation_and_again_without_the_hub(
    env: dict[str, str], wanted: str, tmp_path: Path
) -> None:
    """Only what is needed is fetched, once; a folder of the cache is a model folder."""
    folder = tmp_path / "model"
    shutil.copytree(saved("marian").folder, folder)
    for more in ("pytorch_model.bin", "tf_model.h5", "README.md", ".gitattributes", "rust.ot"):
        (folder / more).write_text("not wanted")
    needed = {path.name for path in saved("marian").folder.iterdir()}
    with running(Hub({NAME: folder})) as hub:
        assert translate(NAME, env | {"HF_ENDPOINT": hub.address}) == (0, wanted, "")
        got = [path.rsplit("/", 1)[1] for method, path in hub.asked if "/resolve/" in path]
        assert {*got} == needed and len(got) == 2 * len(needed)  # HEAD and GET
        count = len(hub.asked)
        assert translate(NAME, env | {"HF_ENDPOINT": hub.address}) == (0, wanted, "")
        assert len(hub.asked) == count
    assert translate(NAME, env) == (0, wanted, "")
    (made,) = imported(tmp_path)
    assert (
        made.name == f"Owner--opus-mt-en-de@{COMMIT[:12]}@{importing.VERSION}"
        and model_folder.read(made).source == "en"
    )
    status, said, _ = run("doctor", NAME, env=env)
    assert status == 0 and "en" in said


def test_what_another_program_has_fetched_needs_no_hub(
    env: dict[str, str], wanted: str, tmp_path: Path
) -> None:
    """``import`` reads names, too."""
    with running(Hub({NAME: saved("marian").folder})) as hub:
        there = env | {"HF_ENDPOINT": hub.address}
        status, said, _ = run("import", NAME, tmp_path / "out", env=there)
    assert status == 0 and f"{tmp_path / 'out'}: a model folder, en to de" in said
    assert not imported(tmp_path)
    for more in ({}, {"HF_HUB_OFFLINE": "1"}):
        shutil.rmtree(tmp_path / "cache/fairseq_paradec/models", ignore_errors=True)
        assert translate(NAME, env | more) == (0, wanted, "")


@pytest.mark.slow
def test_a_model_of_several_languages(env: dict[str, str], tmp_path: Path) -> None:
    """Each pair is a folder of its own; in Python, too."""
    made = saved("nllb")
    source, target = made.languages
    pair = ("--source", source, "--target", target)
    with running(Hub({"a/nllb": made.folder})) as hub:
        there = env | {"HF_ENDPOINT": hub.address}
        status, _, said = translate("a/nllb", there)
        assert status == 2 and said.count("\n") == 1 and "--source" in said
        status, text, _ = translate("a/nllb", there, *pair)
        assert status == 0 and text
        assert run("doctor", "a/nllb", *pair, env=there)[0] == 0
        (tmp_path / "text").write_text(f"{TEXT}\n")
        files = (tmp_path / "text", tmp_path / "text")
        status, score, said = run("score", "--model", "a/nllb", *files, *pair, env=there)
        assert status == 0 and float(score) < 0, said
        code = "import sys, fairseq_paradec\n"
        code += "model = fairseq_paradec.load('a/nllb', source=sys.argv[1], target=sys.argv[2])\n"
        code += f"print(model.translate({TEXT!r}, decoding='greedy'))"
        words = [sys.executable, "-c", code, source, target]
        done = subprocess.run(words, env=environment(there), capture_output=True, text=True)
        assert done.stdout == text, done.stderr
    (folder,) = imported(tmp_path)
    assert folder.name.startswith(f"a--nllb@{source}-{target}@")


@pytest.mark.slow
def test_a_model_folder_on_the_hub_is_used_as_it_is(env: dict[str, str], tmp_path: Path) -> None:
    demo = Path(__file__).parents[2] / "data-bin/demo.en-de"
    folder = tmp_path / "model"
    folder.mkdir()
    needed = {*model_folder.read(demo).files, model_folder.NAME}
    for name in needed:
        shutil.copyfile(demo / name, folder / name)
    (folder / "pytorch_model.bin").write_text("not wanted")
    with running(Hub({"a/ours": folder})) as hub:
        done = translate("a/ours", env | {"HF_ENDPOINT": hub.address})
        assert {path.rsplit("/", 1)[1] for _, path in hub.asked if "/resolve/" in path} == needed
    assert done == (0, "Sie singt.\n", "")
    (made,) = imported(tmp_path)
    assert model_folder.read(made) == model_folder.read(demo)
    linked = {path.name for path in made.iterdir() if path.stat().st_nlink > 1}
    assert linked == needed - {model_folder.NAME}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no/such", "a model folder, or the name of a model on the hub; there is neither"),
        ("a/gated", "a model that you may read: accept its terms on its page, and give HF_TOKEN"),
        ("a/gpt", "--model a/gpt: model_type: got 'gpt2'; allowed: a model whose config.json"),
        ("a/empty", "got 'a/empty'; allowed: a model with config.json and one of model.safete"),
        ("a/broken", "model.safetensors"),
    ],
)
def test_what_cannot_be_had_is_one_line(
    name: str, words: str, env: dict[str, str], tmp_path: Path
) -> None:
    """Nothing large is fetched of a kind that is not known, and nothing half stays."""
    folders = {of: tmp_path / of for of in ("gated", "gpt", "empty", "broken")}
    for folder in folders.values():
        folder.mkdir()
    (folders["gpt"] / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    (folders["gpt"] / "model.safetensors").write_text("large")
    shutil.copytree(saved("marian").folder, folders["broken"], dirs_exist_ok=True)
    (folders["broken"] / "model.safetensors").write_bytes(b"\xff" * 100)
    shutil.copytree(saved("marian").folder, folders["gated"], dirs_exist_ok=True)
    models = {f"a/{of}": folder for of, folder in folders.items()}
    with running(Hub(models, gated={"a/gated"})) as hub:
        status, text, said = translate(name, env | {"HF_ENDPOINT": hub.address})
        assert name == "a/broken" or not any("model.safe" in path for _, path in hub.asked)
    assert (status, text, said.count("\n")) == (2, "", 1) and words in said, said
    assert not imported(tmp_path)


def test_without_the_hub_or_its_package_or_a_cache_one_line_says_so(
    env: dict[str, str], tmp_path: Path
) -> None:
    for more in ({}, {"HF_HUB_OFFLINE": "1"}):
        status, _, said = translate(NAME, env | more)
        assert status == 2 and said.count("\n") == 1
        assert "where the hub can be reached; it cannot, and the model was not fetched" in said
    words = ("translate", "--model", NAME, "--text", TEXT)
    status, _, said = run(*words, env=env, without="huggingface_hub")
    assert status == 2 and said.count("\n") == 1
    assert f"--model {NAME} needs huggingface_hub; install fairseq_paradec[hub]" in said
    (tmp_path / "file").touch()
    for cache in ("HF_HOME", "XDG_CACHE_HOME"):
        with running(Hub({NAME: saved("marian").folder})) as hub:
            there = env | {"HF_ENDPOINT": hub.address, cache: str(tmp_path / "file/in")}
            status, _, said = translate(NAME, there)
        assert status == 2 and said.count("\n") == 1 and "Not a directory" in said, said
    status, _, said = translate("data-bin/demo.en-de", env, "--source", "en")
    assert status == 2 and "--source en needs --model with a model's name on the hub" in said


@pytest.mark.slow
def test_a_download_that_breaks_off_goes_on_where_it_was(env: dict[str, str], wanted: str) -> None:
    with running(Hub({NAME: saved("marian").folder}, cut="model.safetensors")) as hub:
        assert translate(NAME, env | {"HF_ENDPOINT": hub.address})[:2] == (0, wanted)
        assert hub.cut is None


@pytest.mark.parametrize("file", ["model.safetensors", "vocab.json"])
def test_a_damaged_file_is_refused_and_fetched_anew(
    file: str, env: dict[str, str], wanted: str, tmp_path: Path
) -> None:
    """Its size is right; without the hub, its name among huggingface_hub's files tells its hash."""
    refused = f"--model {NAME}: {file}: got 'a damaged file'; allowed: the file as the hub has it"
    with running(Hub({NAME: saved("marian").folder}, damaged=file)) as hub:
        there = env | {"HF_ENDPOINT": hub.address}
        status, text, said = translate(NAME, there)
        assert (status, text, said.count("\n")) == (2, "", 1) and refused in said, said
        hub.damaged = None
        assert translate(NAME, there) == (0, wanted, "")
    shutil.rmtree(tmp_path / "cache/fairseq_paradec/models")
    (kept,) = (tmp_path / "hf").glob(f"hub/models--*/snapshots/*/{file}")
    kept.write_bytes(kept.read_bytes()[:-1] + b"\x01")
    status, _, said = translate(NAME, env)
    assert (status, said.count("\n")) == (2, 1) and refused in said, said
    assert not kept.exists() and not kept.is_symlink()


def test_sigterm_leaves_no_half_of_a_folder(tmp_path: Path) -> None:
    code = "import sys, time; from pathlib import Path\n"
    code += "from fairseq_paradec.translator.model_folder import new_folder\n"
    code += "with new_folder(Path(sys.argv[1])): print('begun', flush=True); time.sleep(60)"
    words = [sys.executable, "-c", code, tmp_path / "out"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment({})) as process:
        assert process.stdout is not None and process.stdout.readline() == "begun\n"
        process.terminate()
        assert process.wait(30) == 143
    assert not [*tmp_path.iterdir()]


def test_a_hub_that_never_answers_is_left(env: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        status, _, said = translate(
            NAME, env | {"HF_ENDPOINT": address, "HF_HUB_ETAG_TIMEOUT": "1"}
        )
    assert status == 2 and said.count("\n") == 1 and "it cannot, and the model was not" in said, (
        said
    )


def test_a_revision_is_honoured_and_kept_by_its_commit(
    env: dict[str, str], wanted: str, tmp_path: Path
) -> None:
    """A commit has one folder, whatever names it; what changed at the hub is another folder."""
    tag = "f" * 40
    revisions = {"main": COMMIT, "v1/a": COMMIT, "new": tag, tag: tag, COMMIT: COMMIT}
    revisions["v1%2Fa"] = COMMIT
    with running(Hub({NAME: saved("marian").folder}, revisions=revisions)) as hub:
        there = env | {"HF_ENDPOINT": hub.address}
        for revision in ("v1/a", COMMIT):
            assert translate(f"{NAME}@{revision}", there) == (0, wanted, "")
        assert len(imported(tmp_path)) == 1
        assert translate(f"{NAME}@new", there) == (0, wanted, "")
        for revision, words in (
            ("no", "there is no such one"),
            ("", "a branch, tag"),
            ("a..b", ""),
        ):
            status, _, said = translate(f"{NAME}@{revision}", there)
            assert status == 2 and said.count("\n") == 1 and words in said, said
            assert "NAME@REVISION with a branch, tag or commit of the model" in said
    assert {place.name.split("@")[1] for place in imported(tmp_path)} == {COMMIT[:12], tag[:12]}
    for revision in ("v1/a", COMMIT, "new"):
        assert translate(f"{NAME}@{revision}", env) == (0, wanted, "")


def test_another_version_of_the_importers_imports_anew(
    env: dict[str, str], wanted: str, tmp_path: Path
) -> None:
    """From what was fetched, without the hub; and says so in a terminal alone."""
    with running(Hub({NAME: saved("marian").folder})) as hub:
        assert translate(NAME, env | {"HF_ENDPOINT": hub.address}) == (0, wanted, "")
    newer = "import fairseq_paradec.translator.importing as i; i.VERSION = 99" + ALONE
    words = ("translate", "--model", NAME, "--text", TEXT, "--decoding", "greedy")
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", newer, "", *words],
        env=environment(env),
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        timeout=120,
    )
    os.close(theirs)
    with open(ours, "rb", buffering=0) as terminal:
        assert (done.returncode, done.stdout) == (0, wanted)
        assert terminal.read(1000).decode().strip() == f"importing {NAME} ..."
    assert {place.name.rpartition("@")[2] for place in imported(tmp_path)} == {"1", "99"}


@pytest.mark.slow
def test_two_processes_at_once_make_one_folder(
    env: dict[str, str], wanted: str, tmp_path: Path
) -> None:
    with running(Hub({NAME: saved("marian").folder})) as hub:
        there = environment(env | {"HF_ENDPOINT": hub.address})
        words = ("translate", "--model", NAME, "--text", TEXT, "--decoding", "greedy")
        both = [
            subprocess.Popen(command(*words, env=env), env=there, stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        assert [process.communicate(timeout=120)[0] for process in both] == [wanted, wanted]
    assert len(imported(tmp_path)) == 1


@pytest.mark.parametrize(
    "given",
    ["../up", "./a/b", "a/../b", "a//b", "/a/b", "a/b/c", "a", "-a/b", "a/b..c", "a/b c", ""],
)
def test_what_is_no_name_is_a_path(given: str) -> None:
    assert not ours.is_name(given)


def test_what_is_there_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert ours.is_name("models/en-de")
    (tmp_path / "models/en-de").mkdir(parents=True)
    assert not ours.is_name("models/en-de")
