"""The committed library matches its sources; choosing a variant; what importing loads."""

import subprocess
import sys
import threading

import pytest
import torch

import smoe.kernels
from smoe.kernels import Linear, alloc_huge, native
from smoe.kernels.cpu.build import LIBRARY, library_hash, source_hash


def test_committed_library_matches_its_sources() -> None:
    assert library_hash() == source_hash(), "rebuild with: python -m smoe.kernels.build"
    assert LIBRARY.stat().st_size < 350_000


def test_public_names() -> None:
    assert smoe.kernels.__all__ == [
        "Attention",
        "ExpertTable",
        "ExpertTensors",
        "GatedDelta",
        "GatedMLP",
        "Int4Table",
        "Int4Tensors",
        "LatentAttention",
        "LayerNorm",
        "Linear",
        "RMSNorm",
        "Rows",
        "SoftmaxRouter",
        "alloc_huge",
        "moe",
        "moe_combine",
        "moe_pairs",
        "topk_softmax",
    ]
    for name in smoe.kernels.__all__:
        assert getattr(smoe.kernels, name).__module__.startswith("smoe.kernels.")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        smoe.kernels.nothing  # noqa: B018


def run(code: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


def test_importing_is_light() -> None:
    code = "import sys, smoe.kernels; print([m for m in ('torch', 'triton') if m in sys.modules])"
    assert run(code).stdout.strip() == "[]"


@pytest.mark.parametrize("choice", ["auto", "torch"])
def test_environment_variable_chooses(choice: str) -> None:
    done = run("from smoe.kernels import native; print(native.describe())", SMOE_CPU_KERNELS=choice)
    native.use("auto")
    assert done.stdout.strip() == ("torch" if choice == "torch" else native.describe()), done.stderr


def test_unknown_choice_is_named() -> None:
    done = run("from smoe.kernels import native; native.library()", SMOE_CPU_KERNELS="sse")
    assert "ValueError: SMOE_CPU_KERNELS='sse' is unknown: expected one of auto, avx512, avx2, torch" in done.stderr


def test_calls_from_several_threads(native_variant: str) -> None:
    """Scratch memory and thread pools belong to the calling thread."""
    layer, x = Linear(torch.randn(700, 300)), torch.randn(20, 300).to(torch.bfloat16)
    expected = layer(x)
    wrong: list[int] = []

    def work() -> None:
        wrong.extend(i for i in range(50) if not torch.equal(layer(x), expected))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_alloc_huge() -> None:
    arena = alloc_huge(5000)
    assert (arena.shape, arena.dtype, arena.data_ptr() % 4096) == ((5000,), torch.uint8, 0)
    view = arena[:4000].view(torch.bfloat16)
    del arena
    view.fill_(3.0)
    assert float(view.float().sum()) == 6000.0
    with pytest.raises(ValueError, match="nbytes=0"):
        alloc_huge(0)
