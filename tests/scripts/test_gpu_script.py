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


#: Stands for Python: writes down how it is called, and makes what the commands of a training make.
RECORDER = """#!/bin/bash
[ "$2 $3" = '-m fairseq_paradec' ] || exit 0
printf '%s ' "$@" >>"$CALLS"; echo >>"$CALLS"
words=("$@")
for i in "${!words[@]}"; do
    case ${words[i]} in --save-dir) folder=${words[i + 1]} ;; --out) out=${words[i + 1]} ;; esac
done
case $4 in
    train)
        sleep 2
        mkdir -p "$folder"
        echo '{"num_updates": "500", "wall": "2"}' >"$folder/train.log"
        touch "$folder/model.pt"
        ;;
    shrink) echo weights >"${@: -1}" ;;
    benchmark) echo {} >"$out" ;;
esac
"""


def test_the_second_half_has_its_own_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fairseq's clock goes on where the first half's stopped; the second half's limit, too."""
    python, calls, start = (tmp_path / name for name in ("python", "calls", "start.pt"))
    python.write_text(RECORDER)
    python.chmod(0o755)
    start.touch()
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/valid.de").touch()
    monkeypatch.setitem(ENV, "CALLS", str(calls))
    work = tmp_path / "work"
    place = ["--data", tmp_path, "--work", work, "--out", tmp_path / "out", "--python", python]
    result = gpu("train", "imdecoder", "--device", "cpu", "--minutes", 2, "--start", start, *place)
    assert result.returncode == 0, result.stderr
    words = [line.split() for line in calls.read_text().splitlines()]
    assert [line[3] for line in words] == ["train", "train", "shrink", "benchmark"]
    first, second = (dict(zip(line, line[1:], strict=False)) for line in words[:2])
    assert first["--start-from"] == str(start) and first["--lr-scheduler"] == "inverse_sqrt"
    assert second["--finetune-from-model"] == str(work / "train/imdecoder/first/model.pt")
    assert second["--lr-scheduler"] == "polynomial_decay"
    took = int((work / "train/imdecoder/first.took").read_text())
    own = int(second["--updates"]) / (0.9 * 500 / 2)  # seconds: so many updates fit into them
    assert took >= 2 and 60 < own <= 120 - 45 - took
    assert float(second["--stop-time-hours"]) * 3600 == pytest.approx(own + took, abs=0.1)


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
