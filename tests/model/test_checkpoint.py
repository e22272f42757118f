"""torch's checkpoints without torch: equal to ``torch.load``'s; hostile ones are a line each."""

import argparse
import io
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from support.builders import tiny_model, tiny_task
from support.commands import ROOT
from support.fuzzing import Change, changes, in_a_child, spoil

from fairseq_paradec.errors import UsageError
from fairseq_paradec.model import checkpoint
from fairseq_paradec.model.pickles import Record

COMMITTED = sorted([*(ROOT / "data-bin").rglob("*.pt"), ROOT / "tests" / "fixtures" / "numpy1.pt"])
SHARED = sorted((ROOT.parent / "shared" / "models").rglob("*.pt"))
KINDS = sorted(checkpoint.DTYPES)


def numbers(array: np.ndarray) -> np.ndarray:
    """An array's bytes, in the order of its elements."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def compare(ours: Any, theirs: Any) -> int:
    """Check that two contents are equal bit for bit; return how many tensors were compared."""
    if torch.is_tensor(theirs):
        theirs = theirs.detach()
        assert isinstance(ours, np.ndarray) and not (ours.flags.writeable and ours.size)
        assert ours.shape == tuple(theirs.shape)
        assert ours.dtype == checkpoint.DTYPES[str(theirs.dtype).removeprefix("torch.")]
        flat = theirs.contiguous().reshape(-1).view(torch.uint8).numpy()
        assert np.array_equal(numbers(ours), flat)
        return 1
    if isinstance(theirs, argparse.Namespace):
        assert type(ours) is argparse.Namespace
        return compare(vars(ours), vars(theirs))
    if isinstance(theirs, (np.ndarray, np.generic)):
        assert type(ours) is type(theirs) and ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()
        return 0
    if callable(theirs):  # a class or function that lies there as a value
        assert isinstance(ours, Record) and ours.args is None
        assert ours.name.rpartition(".")[2] == theirs.__name__
        return 0
    assert isinstance(ours, type(theirs)), (ours, theirs)
    if isinstance(theirs, dict):
        assert [*ours] == [*theirs]
        more = [(vars(ours), vars(theirs))] if isinstance(theirs, OrderedDict) else []
        return sum(compare(*pair) for pair in [*zip(ours.values(), theirs.values()), *more])
    if isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs)
        return sum(map(compare, ours, theirs))
    assert ours == theirs or (ours != ours and theirs != theirs)
    return 0


def loaded(path: Path) -> Any:
    """What torch reads."""
    return torch.load(path, map_location="cpu", weights_only=True)


@pytest.mark.parametrize("path", [*COMMITTED, *SHARED], ids=lambda path: "-".join(path.parts[-2:]))
def test_a_checkpoint_is_as_torch_reads_it(path: Path) -> None:
    read = checkpoint.read(path)
    theirs = loaded(path)
    assert compare(read.content, theirs) >= len(theirs["model"]) > 0
    assert read.foreign == ()


def test_there_are_checkpoints_to_compare() -> None:
    assert len(COMMITTED) >= 9


def tensors() -> dict[str, torch.Tensor]:
    """Tensors of every type, shape and place."""
    torch.manual_seed(1)
    bits = torch.randint(0, 2, (3, 4, 5), dtype=torch.uint8)
    bytes_ = torch.randint(0, 256, (6 * 16,), dtype=torch.uint8)
    kinds = {
        name: bits.bool()
        if name == "bool"
        else bytes_.clone().view(getattr(torch, name)).reshape(2, -1)
        for name in KINDS
    }
    base = torch.randn(6, 8)
    parts = base.chunk(3) + base.new_ones(4, 6).chunk(2, dim=1)
    return {
        **kinds,
        **{f"part {number}": part for number, part in enumerate(parts)},
        "transposed": torch.randn(3, 4, 5).permute(2, 0, 1),
        "stepped": torch.arange(20)[3::4],
        "tied": kinds["float32"].detach(),
        "a row": torch.randn(3).as_strided((1, 3), (0, 1)),
        "parameter": torch.nn.Parameter(torch.randn(2, 3)),
        "number": torch.tensor(7.5),
        "none": torch.empty(0),
        "empty": torch.empty(3, 0, 2),
    }


def test_tensors_of_all_types_and_places_are_read(tmp_path: Path) -> None:
    saved = tensors()
    torch.save(saved, tmp_path / "x.pt")
    read = checkpoint.read(tmp_path / "x.pt")
    assert compare(read.content, saved) == len(saved) and read.foreign == ()
    assert read.content["tied"] is read.content["float32"]
    assert read.content["bfloat16"]["bfloat16"].dtype == np.uint16
    with pytest.raises(TypeError):
        read.content["bfloat16"] + 1


def test_a_state_of_training_is_read(tmp_path: Path) -> None:
    model = tiny_model(tiny_task())
    optimizer = torch.optim.Adam(model.parameters())
    sum(weight.sum() for weight in model.parameters()).backward()
    optimizer.step()
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "e": [1.5, 1 << 70]}
    torch.save(saved, tmp_path / "x.pt")
    read = checkpoint.read(tmp_path / "x.pt").content
    assert compare(read, saved) > 3 * len([*model.parameters()])
    assert read["model"]._metadata == saved["model"]._metadata


def test_numbers_of_no_type_of_numpys_are_records(tmp_path: Path) -> None:
    kinds = {
        "float8": torch.zeros(2, dtype=torch.float8_e4m3fn),
        "sparse": torch.eye(3).to_sparse(),
        "meta": torch.empty(2, device="meta"),
        "quantised": torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8),
        "conjugate": torch.ones(2, dtype=torch.complex64).conj(),
    }
    torch.save(kinds, tmp_path / "x.pt")
    read = checkpoint.read(tmp_path / "x.pt")
    assert {type(value) for value in read.content.values()} == {Record} and read.foreign == ()


def test_settings_of_every_form_are_read(tmp_path: Path) -> None:
    """fairseq saved a Namespace, then dicts, for a while omegaconf's."""
    whole = {"model": {"_name": "x", "layers": 3, "dropout": 0.5, "best": None, "tied": True}}
    forms = [whole, {"model": argparse.Namespace(**whole["model"])}, OmegaConf.create(whole)]
    torch.save([*forms, OmegaConf.create({"a": "${b}", "b": [1]}), None, "x"], tmp_path / "x.pt")
    read = checkpoint.read(tmp_path / "x.pt")
    assert read.foreign == ()
    for cfg in read.content[:3]:
        assert checkpoint.settings(checkpoint.settings(cfg)["model"]) == whole["model"]
    *_, odd, nothing, text = map(checkpoint.settings, read.content)
    assert odd["a"] == "${b}" and isinstance(odd["b"], Record) and nothing == text == {}


def test_all_that_torch_takes_for_safe_is_harmless() -> None:
    """The message of a refused checkpoint names the same classes as torch's."""
    safe = {*torch._weights_only_unpickler._get_allowed_globals()}
    safe |= {*torch._weights_only_unpickler._get_user_allowed_globals()}
    apart = ("torch.nested.", "torch.distributed.", "torch._dynamo.")  # added by their imports
    safe = {name for name in safe if not name.startswith(apart)}
    known = {"collections.Counter", "collections.OrderedDict", "collections.defaultdict"}
    known |= {"argparse.Namespace", "_codecs.encode", "numpy.dtype"}
    known |= {f"numpy.{core}.multiarray.{name}" for core in ("core", "_core")
              for name in ("_reconstruct", "scalar")}  # fmt: skip
    assert [*filter(lambda name: not checkpoint._HARMLESS.fullmatch(name), safe - known)] == []
    for name in ("torch.load", "os.system", "builtins.eval", "torch.hub.load", "numpy.memmap"):
        assert not checkpoint._HARMLESS.fullmatch(name)


# ---- hostile ones ------------------------------------------------------------------------------


class Stored:
    """A storage that a pickle names."""

    def __init__(self, kind: Any = torch.FloatStorage, key: Any = "0", count: Any = 4):
        self.id = ("storage", kind, key, "cpu", count)


class Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        return value.id if isinstance(value, Stored) else None


class Called:
    """A call that a pickle asks for."""

    def __init__(self, function: Any, *args: Any):
        self.reduced = (function, args)

    def __reduce__(self) -> Any:
        return self.reduced


def tensor(size: Any, stride: Any, offset: Any = 0, storage: Any = None) -> Called:
    """A tensor of a storage of four numbers."""
    place = (Stored() if storage is None else storage, offset, size, stride)
    return Called(torch._utils._rebuild_tensor_v2, *place, False, OrderedDict())


def forge(
    path: Path, content: Any, protocol: int = 2, data: bytes = bytes(16), how: int = 0
) -> Path:
    """Write an archive with a pickle of one's own and a storage."""
    if not isinstance(content, bytes):
        stream = io.BytesIO()
        Pickler(stream, protocol).dump(content)
        content = stream.getvalue()
    with zipfile.ZipFile(path, "w", how) as archive:
        archive.writestr("x/data.pkl", content)
        archive.writestr("x/data/0", data)
    return path


def message(path: Path) -> str:
    """What reading says; it is one line, names the file, and says what is allowed."""
    with pytest.raises(UsageError) as caught:
        checkpoint.read(path)
    said = str(caught.value)
    assert said.startswith(f"{path}: got ") and "\n" not in said and len(said) < 1000
    assert said.endswith("; allowed: an undamaged checkpoint, as torch 1.6 and newer save it")
    return said


def calls(witness: Path) -> Iterator[tuple[str, Any]]:
    """Pickles that call something, and a name that they ask for."""
    touch = f"touch '{witness}'"
    write = f"open({str(witness)!r}, 'w').close()"
    yield "posix.system", Called(os.system, touch)
    yield "builtins.eval", Called(eval, write)
    yield "builtins.exec", Called(exec, write)
    yield "io.open", Called(open, str(witness), "w")
    yield "builtins.getattr", Called(Called(getattr, os, "system"), touch)
    yield "posix.system", Called(argparse.Namespace, Called(os.system, touch))
    yield "posix.system", {"model": [Called(os.system, touch)], "cfg": {}}
    yield "posix.system", OrderedDict(a=Called(os.system, touch))
    yield "subprocess.call", Called(subprocess.call, ["touch", str(witness)])
    yield "torch.serialization.load", Called(torch.load, str(witness))
    yield "torch.storage._load_from_bytes", Called(torch.storage._load_from_bytes, b"x")
    yield "numpy.memmap", Called(np.memmap, str(witness), "u1", "w+", 0, (9,))
    yield "builtins.map", Called(list, Called(map, os.system, [touch]))


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("number", range(13))
def test_a_pickle_calls_nothing(number: int, protocol: int, tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    name, content = [*calls(witness)][number]
    if number == 4:  # a module has no pickle
        content = None
    path = tmp_path / "x.pt"
    if content is None:
        line = b"cbuiltins\ngetattr\n(cposix\n__name__\nX\x06\x00\x00\x00systemtR(X"
        said = f"touch '{witness}'".encode()
        line += struct.pack("<I", len(said)) + said + b"tR."
        forge(path, b"\x80\x02" + line)
        assert "a pickle that calls" in message(path)
    else:
        try:
            assert name in checkpoint.read(forge(path, content, protocol)).foreign
        except UsageError:
            message(path)
    assert not witness.exists()


TWO = torch.zeros(2)
#: Pickles that ask for what cannot be, and what is said.
LIES: dict[str, tuple[Any, str]] = {
    "a size beyond": (tensor((5,), (1,)), "beyond the end of its storage"),
    "an offset beyond": (tensor((2,), (1,), 3), "beyond the end of its storage"),
    "a stride beyond": (tensor((2, 2), (4, 1)), "beyond the end of its storage"),
    "a size that overflows": (tensor((1 << 62, 1 << 62), (1 << 62, 1)), "beyond the end"),
    "a stride that overflows": (tensor((2,), (1 << 63,)), "beyond the end of its storage"),
    "an offset that overflows": (tensor((2,), (1,), (1 << 64) - 1), "beyond the end"),
    "nothing, of a large size": (tensor((0, 1 << 62, 1 << 62), (1, 1, 1)), "a pickle of"),
    "a negative size": (tensor((-1,), (1,)), "odd sizes"),
    "a negative stride": (tensor((2,), (-1,), 2), "odd sizes"),
    "a negative offset": (tensor((2,), (1,), -1), "odd sizes"),
    "a real size": (tensor((2.0,), (1,)), "odd sizes"),
    "a true size": (tensor((True,), (1,)), "odd sizes"),
    "a hundred dimensions": (tensor((1,) * 100, (1,) * 100), "odd sizes"),
    "sizes without strides": (tensor((2, 2), (1,)), "sizes and strides"),
    "no sizes": (tensor(None, None), "sizes and strides"),
    "an expanded one": (tensor((1 << 40,), (0,)), "fewer numbers than elements"),
    "windows": (tensor((3, 2), (1, 1)), "fewer numbers than elements"),
    "one over another": ([tensor((3,), (1,)), tensor((3,), (1,), 1)], "lie over each other"),
    "a part of another": ([tensor((4,), (1,)), tensor((2,), (1,))], "lie over each other"),
    "a column of another": ([tensor((2, 2), (2, 1)), tensor((2,), (2,))], "lie over each other"),
    "no storage": (tensor((2,), (1,), storage="0"), "a tensor without storage"),
    "another key": (tensor((2,), (1,), storage=Stored(key="1")), "no storage '1'"),
    "a key outside": (tensor((2,), (1,), storage=Stored(key="../data.pkl")), "no storage"),
    "a key of bytes": (tensor((2,), (1,), storage=Stored(key=b"0")), "without type, key or"),
    "more numbers": (tensor((2,), (1,), storage=Stored(count=5)), "16 bytes for 5 numbers"),
    "fewer numbers": (tensor((2,), (1,), storage=Stored(count=1)), "16 bytes for 1 numbers"),
    "numbers that overflow": (
        tensor((2,), (1,), storage=Stored(count=(1 << 62) + 4)),
        "numbers of 4",
    ),
    "negative numbers": (tensor((2,), (1,), storage=Stored(count=-4)), "16 bytes for -4"),
    "two types": (
        [tensor((4,), (1,)), tensor((4,), (1,), storage=Stored(torch.IntStorage))],
        "of two types",
    ),
    "wider numbers": (tensor((2,), (1,), storage=Stored(torch.DoubleStorage)), "numbers of 8"),
    "a type of nobody's": (tensor((2,), (1,), storage=Stored(dict)), "type 'builtins.dict'"),
    "a type that is text": (tensor((2,), (1,), storage=Stored("x")), "without type"),
    "a dict with a list's key": (b"\x80\x02}]Ns.", "a list as a key"),
    "a deep key": (b"\x80\x02})" + b"\x85" * 5 * 10**5 + b"Ns.", "a tuple as a key"),
    "a wide key": (b"\x80\x02})" + b"q\x00h\x00\x86" * 10**5 + b"Ns.", "a tuple as a key"),
    "a large key": (b"\x80\x02}\x8a\x09" + bytes(8) + b"\x01Ns.", "a int as a key"),
    "a memo that is empty": (b"\x80\x02h\x00.", "ends early"),
    "nothing": (b"", "ends early"),
    "no end": (b"\x80\x02}", "ends early"),
    "a stack that is empty": (b"\x80\x020.", "operation b'0'"),
    "a text of gigabytes": (b"\x80\x02X\xff\xff\xff\xffa.", "ends early"),
    "an array of gigabytes": (b"\x80\x05\x96" + b"\xff" * 7 + b"\x00.", "operation"),
    "items of a tuple": (b"\x80\x02)Na.", "appends to a tuple"),
    "attributes of a list": (b"\x80\x02]}b.", "sets attributes of a list"),
    "a call of a text": (b"\x80\x02X\x01\x00\x00\x00a)R.", "calls a str"),
    "numpy's objects": (Called(np.dtype, "O"), "numbers of type 'O'"),
    "bytes by bz2": (Called(__import__("_codecs").encode, "x", "bz2"), "another encoding"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_pickle_that_lies_is_one_line(name: str, tmp_path: Path) -> None:
    content, said = LIES[name]
    assert said in message(forge(tmp_path / "x.pt", content))


def test_a_memo_of_billions_takes_no_memory(tmp_path: Path) -> None:
    """Python's own unpickler takes 4 GB for it; lists may be as deep as a file is long."""
    path = tmp_path / "x.pt"
    deep = b"\x80\x02]r\xff\xff\xff\xff" + b"]" * 4 * 10**5 + b"a" * 4 * 10**5
    wide = b"\x80\x02]q\x00" + b"".join(
        b"]" + bytes([ord("q"), n + 1]) + b"(" + bytes([ord("h"), n]) * 9 + b"e" for n in range(100)
    )

    def work() -> str:
        checkpoint.read(forge(path, deep + b"."))
        checkpoint.read(forge(path, wide + b"."))
        return "read"

    assert in_a_child(work, 60) == "read"


def test_a_large_pickle_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = forge(tmp_path / "x.pt", b"\x80\x02" + b"}" * (2 * checkpoint.PICKLE) + b".")
    assert "describes no weights" in message(path)


def put(path: Path, at: bytes, offset: int, value: bytes, which: int = 0) -> None:
    """Change bytes behind a signature of an archive."""
    content = bytearray(path.read_bytes())
    place = -1
    for _ in range(which + 1):
        place = content.index(at, place + 1)
    content[place + offset : place + offset + len(value)] = value
    path.write_bytes(content)


LOCAL, CENTRAL, END = b"PK\3\4", b"PK\1\2", b"PK\5\6"
#: Changes of an archive of a checkpoint: signature, offset, bytes, which member; what is said.
ARCHIVES: dict[str, tuple[bytes, int, bytes, int, str]] = {
    "one storage over another": (CENTRAL, 42, struct.pack("<I", 0), 1, "something else lies"),
    "a place beyond": (CENTRAL, 42, struct.pack("<I", 10**6), 1, "something else lies"),
    "no header there": (CENTRAL, 42, struct.pack("<I", 40), 1, "something else lies"),
    "a size beyond": (CENTRAL, 20, struct.pack("<II", 10**6, 10**6), 1, "beyond the end"),
    "a name beyond": (LOCAL, 26, struct.pack("<H", 65535), 1, "beyond the end"),
    "a larger size": (CENTRAL, 24, struct.pack("<I", 17), 1, "compressed"),
    "said to be compressed": (CENTRAL, 10, struct.pack("<H", 8), 1, "compressed"),
    "encrypted": (CENTRAL, 8, struct.pack("<H", 1), 1, "encrypted"),
    "no central folder": (END, 16, struct.pack("<I", 10**6), 0, "got "),
    "another first byte": (LOCAL, 0, b"X", 0, "no archive of torch"),
    "an older folder": (CENTRAL, 0, b"X", 0, "Bad magic number"),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_that_lies_is_one_line(name: str, tmp_path: Path) -> None:
    path = forge(tmp_path / "x.pt", {"a": tensor((4,), (1,))})
    signature, offset, value, which, said = ARCHIVES[name]
    put(path, signature, offset, value, which)
    assert any(part in message(path) for part in said.split("|"))


def without(name: str) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, b"\x80\x02}.")

    return write


def twice(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", b"\x80\x02}.")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("x/data.pkl", b"\x80\x02].")


def big_endian(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", b"\x80\x02}.")
        archive.writestr("x/byteorder", b"big")


#: Files that are no checkpoints, and what is said.
OTHERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "an empty file": (lambda path: path.write_bytes(b""), "no archive"),
    "a text": (lambda path: path.write_text("text"), "no archive"),
    "of torch 1.5": (
        lambda path: torch.save({}, path, _use_new_zipfile_serialization=False),
        "no archive of torch",
    ),
    "TorchScript": (
        lambda path: torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), path),
        "TorchScript",
    ),
    "compressed": (lambda path: forge(path, {}, how=zipfile.ZIP_DEFLATED), "'x/data.pkl' compress"),
    "an empty archive": (lambda path: zipfile.ZipFile(path, "w").close(), "no archive"),
    "another archive": (without("a.txt"), "without data.pkl"),
    "a member twice": (twice, "twice"),
    "of a large machine": (big_endian, "byte order"),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_checkpoint_is_one_line(name: str, tmp_path: Path) -> None:
    write, said = OTHERS[name]
    write(tmp_path / "x.pt")
    assert said in message(tmp_path / "x.pt")


def test_a_file_that_is_not_there_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        checkpoint.read(tmp_path / "x.pt")


def small(path: Path) -> bytes:
    """A checkpoint of a few kilobytes."""
    state = {"model": {"a": torch.arange(12.0).reshape(3, 4), "b": torch.ones(2).half()}}
    state["model"]["c"] = state["model"]["a"]
    state |= {"cfg": {"model": argparse.Namespace(arch="x", layers=3)}, "n": np.float64(2.5)}
    torch.save(state, path)
    return path.read_bytes()


def test_a_truncated_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    content = small(path)
    lengths = {*range(0, len(content), 7), *range(len(content) - 200, len(content) - 1)}
    for length in sorted(lengths):
        path.write_bytes(content[:length])
        message(path)
    assert len(lengths) > 400


@pytest.mark.parametrize("part", ["file", "pickle"])
@pytest.mark.parametrize("examples", [150, pytest.param(2500, marks=pytest.mark.slow)])
def test_a_spoilt_file_is_as_torch_reads_it_or_one_line(
    part: str, examples: int, tmp_path: Path
) -> None:
    path = tmp_path / "x.pt"
    whole = small(path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    outcomes = {"read": 0, "refused": 0, "compared": 0}

    def spoilt(given: list[Change]) -> None:
        if part == "file":
            path.write_bytes(spoil(whole, given))
        else:
            with zipfile.ZipFile(path, "w") as archive:
                for name, content in members.items():
                    changed = spoil(content, given) if name.endswith("/data.pkl") else content
                    archive.writestr(name, changed)
        try:
            read = checkpoint.read(path)
        except UsageError:
            message(path)
            outcomes["refused"] += 1
            return
        outcomes["read"] += 1
        try:
            theirs = loaded(path)
        except Exception:
            return
        compare(read.content, theirs)
        outcomes["compared"] += 1

    def work() -> dict[str, int]:
        settings = hypothesis.settings(
            max_examples=examples,
            derandomize=True,
            deadline=None,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        settings(hypothesis.given(changes(is_json=False))(spoilt))()
        return outcomes

    result = in_a_child(work, 120)
    assert isinstance(result, dict), result
    assert result["refused"] > examples / 20 and result["compared"] > examples / 50, result


# ---- without torch -----------------------------------------------------------------------------

ALONE = """
import importlib.abc, importlib.util, json, sys, types
class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "fairseq", "omegaconf"):
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
root, path, words = sys.argv[1:]
package = types.ModuleType("fairseq_paradec")  # its own import registers with fairseq
package.__path__ = [root]
sys.modules["fairseq_paradec"] = package
from fairseq_paradec.model.dictionary import Dictionary
from fairseq_paradec.model.model import Model
read = Dictionary.read(words)
assert len(Model.read(path, read, read).weights) > 100
loaded = {name.partition(".")[0] for name in sys.modules} - {"fairseq_paradec"}
print(*sorted(loaded - sys.stdlib_module_names - {"__main__"}))
"""


def test_reading_needs_numpy_alone() -> None:
    demo = ROOT / "data-bin" / "demo.en-de"
    given = [ROOT / "fairseq_paradec", demo / "model.pt", demo / "dict.de.txt"]
    words = [sys.executable, "-P", "-c", ALONE, *map(str, given)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "torch" not in done.stdout and "numpy" in done.stdout.split()
