"""Files that are written whole or not at all."""

import hashlib
from pathlib import Path

import pytest

from fairseq_paradec.files import checksum, replacing


@pytest.mark.parametrize("shared", [False, True])
def test_a_file_is_replaced_at_the_end(tmp_path: Path, shared: bool) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with replacing(path, shared) as partial:
        partial.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new" and [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("error", [OSError("full"), KeyboardInterrupt()])
def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: Exception) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(type(error)), replacing(path) as partial:
        partial.write_text("half")
        raise error
    assert path.read_text() == "old" and [*tmp_path.iterdir()] == [path]


def test_a_checksum_is_of_the_whole_file(tmp_path: Path) -> None:
    content = b"0123456789" * 300_000
    (tmp_path / "a").write_bytes(content)
    assert checksum(tmp_path / "a") == hashlib.sha256(content).hexdigest()


def test_a_full_disk_is_the_files(tmp_path: Path) -> None:
    """A write's error has no name, and would be taken for standard output's."""
    path = tmp_path / "a.txt"
    with pytest.raises(OSError, match="No space left on device: '.*a.txt'"), replacing(path):
        Path("/dev/full").write_text("new")
