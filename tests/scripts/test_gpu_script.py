"""scripts/gpu.sh: what it refuses and lists; each part in miniature, on the CPU."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from gpu.held import Held
from support.commands import ROOT, fairseq, succeed
from support.training import ENV, SCRIPTS

SMALL = ROOT / "data-bin/demo-small.en-de"


def gpu(*args: object, scripts: Path = SCRIPTS) -> subprocess.CompletedProcess[str]:
    command = [str(scripts / "gpu.sh"), *map(str, args)]
    return subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=900)


@pytest.fixture(name="part")
def run_of_a_part(tmp_path: Path):
    """Run a part on the CPU, in a folder with the files that it lists and no others.

    Returns what it says, and the folder of its results.
    """

    def run(*args: object) -> tuple[str, Path]:
        name, *more = args
        here = tmp_path / f"files of {name}"
        for file in gpu("--files", name).stdout.split():
            if not (here / file).exists() and (ROOT / file).exists():
                (here / file).parent.mkdir(parents=True, exist_ok=True)
                copy = shutil.copytree if (ROOT / file).is_dir() else shutil.copy2
                copy(ROOT / file, here / file)
        place = ["--out", tmp_path / "out", "--work", tmp_path / "work", "--minutes", 10]
        result = gpu(name, "--device", "cpu", *place, *more, scripts=here / "scripts")
        assert result.returncode == 0, result.stderr[-3000:] + result.stdout[-3000:]
        return result.stderr + result.stdout, tmp_path / "out"

    return run


@pytest.mark.parametrize(
    "args, said",
    [
        ([], "PART: got ''; allowed: gates bench"),
        (["gates", "bench"], "got 2 parts; allowed: one of gates"),
        (["train", "big"], "PRESET: got 'big'; allowed: plain double_token ibdecoder"),
        (["bench", "--minutes", "0"], "--minutes: got '0'; allowed: a whole number from 1 up"),
        (["bench", "--device", "tpu"], "--device: got 'tpu'; allowed: cuda cpu"),
    ],
)
def test_a_mistake_is_one_line(args: list[str], said: str) -> None:
    result = gpu(*args)
    assert result.returncode == 2
    assert result.stderr.startswith(f"gpu: {said}") and result.stderr.count("\n") == 1


def test_what_a_part_needs_is_there() -> None:
    files = gpu("--files", "gates").stdout.split() + gpu("--files", "bench").stdout.split()
    assert {"tests/gpu", "data-bin/demo-small.en-de"} < {*files}
    assert all((ROOT / name).exists() for name in files)
    assert "data-bin/everyday-distilled.en-de" in gpu("--files", "train").stdout.split()
    packages = gpu("--packages", "gates").stdout.split()
    assert all(name.count("==") == 1 for name in packages)
    assert {"fairseq-fixed==0.12.3.1", "omegaconf==2.3.0"} < {*packages}


def test_gates_that_have_held_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "held"
    one, other = Held(path), Held(path)  # of two processes
    one.put("a", "greedy", "float32", {"sentences": 4})  # type: ignore[arg-type]
    other.put("b", "greedy", "float32", {"sentences": 3})  # type: ignore[arg-type]
    with path.open("a") as file:
        file.write('{"row": "c", "ca')  # a kill
    found = Held(path)
    assert "a" in found and "b" in found and "c" not in found
    assert found.counts() == {("greedy", "float32"): {"sentences": 7}}
    monkeypatch.setattr("gpu.held.code", lambda: "other")
    assert Held(path).rows == {}


@pytest.mark.slow
def test_gates(part) -> None:
    chosen = ["--processes", 2, "--", "-k", "pj and float32 and ragged and (0 or 1)"]
    said, out = part("gates", *chosen)
    lines = (out / "gates.jsonl").read_text().splitlines()
    assert lines and f"gates that have held: {len(lines)}" in said
    assert f"{len(lines)} skipped" in part("gates", *chosen)[0]


@pytest.mark.slow
def test_bench(part) -> None:
    few = ["--sentences", 2, "--", "--timed", 1, "--rounds", 1, "--batch-sizes", 2]
    _, out = part("bench", *few)
    for dtype in ("fp32", "fp16"):
        found = json.loads((out / f"gpu-bench-{dtype}.json").read_text())
        labels = {one["label"] for one in found["systems"]}
        assert {"fairseq beam 5", "self_draft", "hgj", "assisted", "own beam 5"} <= {
            label.partition(" --")[0] for label in labels
        }
        assert any(label.startswith("transformers greedy, float") for label in labels)
        assert found["setting"]["dtype"] == dtype
    assert (out / "gpu-bench-fp16.md").is_file()


@pytest.mark.slow
def test_profile(part) -> None:
    _, out = part("profile", "--sentences", 1, "--", "--batch-sizes", 1, "--chunks", "1,2")
    rows = json.loads((out / "gpu-profile.json").read_text())["rows"]
    by_name = {row["what"]: row for row in rows}
    assert by_name["pass of 2"]["operators"] > 50 and by_name["pass of 2"]["launches"] is None
    assert by_name["greedy"]["passes"] > 1 and by_name["greedy"]["ms"] > 0


@pytest.mark.slow
def test_train(part, tmp_path: Path) -> None:
    data = tmp_path / "data"
    prefix, dictionary = SMALL / "bpe/demo", SMALL / "dict.en.txt"
    words = ["--trainpref", prefix, "--validpref", prefix, "--srcdict", dictionary]
    words += ["--joined-dictionary", "--destdir", data]
    succeed(fairseq("preprocess", "-s", "en", "-t", "de", *words))
    (data / "raw").mkdir()
    (data / "raw/valid.de").write_bytes((SMALL / "raw/demo.de").read_bytes())
    few = ["--data", data, "--updates", 2, "--max-tokens", 1024]
    _, out = part("train", "imdecoder", *few)
    assert {path.name for path in out.iterdir()} == {
        "imdecoder.json",
        "imdecoder.log",
        "imdecoder.pt.00",
        "imdecoder.pt.01",
    }
    assert max(path.stat().st_size for path in out.iterdir()) <= 15 * 2**20
    rows = json.loads((out / "imdecoder.json").read_text())["rows"]
    assert [row["sentences"] for row in rows] == [100, 100]
    part("join")
    whole = torch.load(out / "imdecoder.pt", weights_only=True)
    assert whole["model"]["encoder.embed_tokens.weight"].dtype == torch.float16
    said, _ = part("train", "imdecoder", *few)  # nothing is trained again
    assert said.count("already trained") == 3 and "translated before" in said
