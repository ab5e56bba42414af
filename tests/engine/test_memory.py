from pathlib import Path

import pytest

from smoe.engine import memory


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: type("Memory", (), {"available": 1000}))
    return tmp_path


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


def free(tree: Path, own: str) -> int:
    write(tree, own=own)
    return memory.free_bytes(tree, tree / "own")


def test_without_groups_it_is_what_the_machine_has(tree: Path) -> None:
    assert memory.free_bytes(tree, tree / "absent") == 1000
    assert free(tree, "0::/") == 1000


def test_the_tightest_group_counts_version_2(tree: Path) -> None:
    write(tree / "a", memory__max=500, memory__current=200, memory__stat="anon 1\ninactive_file 30")
    write(tree / "a" / "b", memory__max="max", memory__current=100)
    assert free(tree, "0::/a/b") == 330
    write(tree / "a" / "b", memory__max=150)
    assert free(tree, "0::/a/b") == 50
    write(tree / "a" / "b", memory__max=50)
    assert free(tree, "0::/a/b") == 0


def test_version_1(tree: Path) -> None:
    folder = tree / "memory" / "x"
    write(folder, memory__limit_in_bytes=900, memory__usage_in_bytes=700)
    assert free(tree, "4:memory:/x\n3:cpu:/y\n0::/") == 200
    write(folder, memory__stat="total_inactive_file 100")
    assert free(tree, "4:memory:/x") == 300
    write(folder, memory__limit_in_bytes=2**63 - 4096)
    assert free(tree, "4:memory:/x") == 1000


def test_the_real_machine() -> None:
    assert memory.free_bytes() > 0
