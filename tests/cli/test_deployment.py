"""`smoe generate CONFIG.yaml`: what is resolved, what wins, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest

from smoe.core.deployment import Deployment
from smoe.core.deployment_file import read_deployment
from tests.cli.test_bad_input import check_refusal

FILE = "model: {dtype: bfloat16}\nparallel: {tensor_parallel_size: 2}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "d.yaml"
    path.write_text(FILE)
    return path


def resolved(out: str, tmp_path: Path) -> Deployment:
    (tmp_path / "resolved.yaml").write_text(out)
    return read_deployment(tmp_path / "resolved.yaml")


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize("verb", ["generate", "chat"])
def test_a_file_alone_is_what_it_says(smoe: Callable, file: Path, tmp_path: Path, verb: str) -> None:
    result = smoe(verb, str(file), "--print-config")
    assert (result.code, result.err) == (0, "")
    assert resolved(result.out, tmp_path) == read_deployment(file)


@pytest.mark.usefixtures("nothing_starts")
def test_given_flags_win_and_say_so(smoe: Callable, file: Path, tmp_path: Path) -> None:
    flags = ("--dtype", "float32", "--tensor-parallel-size", "2", "--schedule", "allreduce", "--no-dedup")
    result = smoe("generate", str(file), *flags, "--print-config")
    assert result.err == (
        f"{file}, but from the command line: model.dtype float32 (not bfloat16), "
        "parallel.schedule allreduce (not scatter), parallel.dedup False (not True)\n"
    )
    made = resolved(result.out, tmp_path)
    assert (made.model.dtype, made.parallel.schedule, made.parallel.dedup) == ("float32", "allreduce", False)
    assert made.parallel.tensor_parallel_size == 2


@pytest.mark.usefixtures("nothing_starts")
def test_a_flag_with_its_default_value_wins_too(smoe: Callable, file: Path, tmp_path: Path) -> None:
    result = smoe("generate", str(file), "--dtype", "auto", "--print-config")
    assert resolved(result.out, tmp_path).model.dtype == "auto"


@pytest.mark.usefixtures("nothing_starts")
def test_without_a_file_flags_are_all_there_is(smoe: Callable, tmp_path: Path) -> None:
    result = smoe("generate", "--expert-memory", "25%", "--threads", "3", "--print-config")
    assert result.err == ""
    assert resolved(result.out, tmp_path) == Deployment().changed({"experts.memory": "25%", "engine.threads": 3})


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize(
    ("text", "flags", "expected"),
    [
        (FILE, ("--in-process",), r"tensor_parallel_size: 2 \(1 with --in-process"),
        ("cluster: {cpus: 2}", ("--in-process",), r"d.yaml: cluster.cpus: 2 \(has no effect with --in-process\)"),
        ("engine: {speed: fast}", (), r"d.yaml: engine.speed: 'fast' \(no such field; one of device"),
        (
            FILE,
            ("--expert-memory", "25%", "--expert-policy", "evict=lru,prefetch=gate"),
            r"policies.prefetch: 'gate' \(none on several devices",
        ),
        ("engine: {device: cuda}\nparallel: {tensor_parallel_size: 2}", (), r"device: 'cuda' \(auto or cpu"),
        (FILE, ("--placement", "nowhere"), r"nowhere"),
    ],
)
def test_refusals(smoe: Callable, tmp_path: Path, text: str, flags: tuple[str, ...], expected: str) -> None:
    path = tmp_path / "d.yaml"
    path.write_text(text)
    result = smoe("generate", str(path), "--prompt", "x", *flags)
    refusal = result.err.splitlines(keepends=True)[-1]
    check_refusal(result.code, result.out, refusal, expected)
    assert all("but from the command line" in line for line in result.err.splitlines()[:-1])


def test_a_file_in_this_process_generates(smoe: Callable, tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_text("experts: {memory: 25%}\nengine: {threads: 1}")
    result = smoe("generate", str(path), "--in-process", "--prompt", "Once upon a time", "--max-tokens", "3")
    assert result.code == 0
    assert result.out.strip()
