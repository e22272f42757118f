"""Which libraries a build makes, keeps and removes; the compiler is pretended."""

from pathlib import Path

import pytest

from fairseq_paradec.engine.native import building

SETS = [name for name, *_ in building.targets()]


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The instruction sets that were built; the compiler does not know the first one."""
    made: list[str] = []

    def build(name: str, flags: tuple[str, ...], folder: Path) -> Path:
        if name == SETS[0]:
            raise building.NativeUnavailable(f"no {name}")
        made.append(name)
        path = folder / f"{building.start_of(name, flags)}{'0' * 16}.so"
        path.touch()
        return path

    monkeypatch.setattr(building, "build", build)
    sets = [(name, flags) for name, flags, _ in building.targets()]
    monkeypatch.setattr(building, "usable", lambda: sets)
    return made


def names(folder: Path) -> list[str]:
    """The instruction sets in a folder."""
    starts = {building.start_of(name, flags): name for name, flags, _ in building.targets()}
    return sorted(starts[f"{path.stem.rpartition('-')[0]}-"] for path in folder.glob("*.so"))


@pytest.mark.skipif(len(SETS) < 3, reason="one instruction set here")
def test_a_build_keeps_what_is_of_these_sources(built: list[str], tmp_path: Path) -> None:
    (tmp_path / f"{SETS[1]}-of-others.so").touch()
    building.build_for_this_cpu(tmp_path)
    assert built == names(tmp_path) == [SETS[1]]  # the next best
    building.build_for_this_cpu(tmp_path)
    assert built == [SETS[1]]
    building.build_all(tmp_path)
    assert sorted(built) == names(tmp_path) == sorted(SETS[1:])


def test_no_library_at_all_says_why(
    built: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = [(name, flags) for name, flags, _ in building.targets()][:1]
    monkeypatch.setattr(building, "usable", lambda: first)
    with pytest.raises(building.NativeUnavailable, match=f"no {SETS[0]}"):
        building.build_for_this_cpu(tmp_path)
    assert built == []
