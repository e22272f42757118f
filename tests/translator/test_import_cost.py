"""What an import costs in time and memory.

``python tests/translator/test_import_cost.py`` measures it at NLLB-600M's size.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

from support.foreign import saved  # noqa: E402

#: Prints the most memory that a command had, in bytes. It starts small, as what it starts begins.
LAUNCH = """
import os, sys
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, used = os.wait4(pid, 0)
print(used.ru_maxrss * 1024, used.ru_utime + used.ru_stime, file=sys.stderr)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def shapes(width: int, inner: int, layers: int, words: int) -> dict[str, tuple[int, ...]]:
    """The weights of a model of M2M-100's form, by transformers' names."""
    found: dict[str, tuple[int, ...]] = {"model.shared.weight": (words, width)}
    for side, attentions in (("encoder", ["self"]), ("decoder", ["self", "encoder"])):
        norms = []
        for layer in range(layers):
            name = f"model.{side}.layers.{layer}"
            maps = {"fc1": (inner, width), "fc2": (width, inner)}
            for kind in attentions:
                norms.append(f"{name}.{kind}_attn_layer_norm")
                maps |= {f"{kind}_attn.{part}_proj": (width, width) for part in ("q", "k", "v")}
                maps[f"{kind}_attn.out_proj"] = (width, width)
            for of, shape in maps.items():
                found |= {f"{name}.{of}.weight": shape, f"{name}.{of}.bias": shape[:1]}
            norms.append(f"{name}.final_layer_norm")
        for norm in (*norms, f"model.{side}.layer_norm"):
            found |= {f"{norm}.weight": (width,), f"{norm}.bias": (width,)}
    return found


def make(folder: Path, width: int, inner: int, layers: int, words: int) -> int:
    """Write a folder of random weights as transformers does; return their bytes."""
    folder.mkdir()
    for file in saved("nllb").folder.iterdir():
        if file.suffix != ".safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    config |= {"d_model": width, "vocab_size": words, "max_position_embeddings": 1024}
    for side in ("encoder", "decoder"):
        config |= {f"{side}_layers": layers, f"{side}_ffn_dim": inner}
        config[f"{side}_attention_heads"] = 16
    (folder / "config.json").write_text(json.dumps(config))
    header, end = {}, 0
    for name, shape in shapes(width, inner, layers, words).items():
        start, end = end, end + 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    line = json.dumps(header).encode()
    line += b" " * (-len(line) % 8)  # numbers lie where their type may
    random = np.random.default_rng(1)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(line).to_bytes(8, "little") + line)
        for left in range(end // 4, 0, -(1 << 22)):
            file.write(random.standard_normal(min(left, 1 << 22), dtype=np.float32).tobytes())
    return end


def cost(given: Path, out: Path) -> tuple[float, float, int]:
    """Import; return seconds by the clock and of the processor, and the peak memory in bytes."""
    words = ["-m", "fairseq_paradec", "import", given, out, "--source", "eng_Latn"]
    command = [sys.executable, "-S", "-c", LAUNCH, sys.executable, *words, "--target", "deu_Latn"]
    begin = time.perf_counter()
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=os.environ)
    seconds = time.perf_counter() - begin
    assert done.returncode == 0, done.stderr
    memory, processor = done.stderr.split()[-2:]
    return seconds, float(processor), int(memory)


@pytest.mark.slow
def test_an_import_needs_little_more_memory_than_the_weights(tmp_path: Path) -> None:
    size = make(tmp_path / "model", 512, 2048, 6, 100_000)
    *_, memory = cost(tmp_path / "model", tmp_path / "out")
    *_, least = cost(saved("nllb").folder, tmp_path / "small")  # of a model of a few words
    assert 300e6 < size and memory - least < 1.3 * size


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as room:
        made = make(Path(room) / "model", 1024, 4096, 12, 256_206)
        clock, processor, peak = cost(Path(room) / "model", Path(room) / "out")
    print(f"{made / 4e6:.0f} million weights, {made / 1e9:.2f} GB: {clock:.1f} s by the clock, ")
    print(f"{processor:.1f} s of the processor, {peak / 1e9:.2f} GB at most")
