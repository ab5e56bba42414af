"""The house rules that no single package can test: what imports what, and what a fresh interpreter loads."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TORCH_FREE = (
    "smoe",
    "smoe.core",
    "smoe.core.config",
    "smoe.core.client",
    "smoe.core.route_trace",
    "smoe.sched.scheduler",
    "smoe.workload",
    "smoe.metrics",
    "smoe.sim",
    "smoe.clustering",
    "smoe.offload.policies",
    "smoe.offload.cache",
)
HEAVY = ("torch", "transformers", "ray", "triton")


@pytest.mark.parametrize("module", TORCH_FREE)
def test_torch_free_module_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_packages_at_the_top_are_linked_into_smoe() -> None:
    for name in ("actors", "collectives", "clustering", "kernels"):
        link = ROOT / "smoe" / name
        assert link.is_symlink()
        assert str(link.readlink()) == f"../{name}"


def test_kernels_of_another_project_is_not_installed() -> None:
    """transformers imports a library named `kernels`; from the repository root it would find our folder instead."""
    spec = importlib.util.find_spec("kernels")
    origin = None if spec is None else spec.origin
    assert origin is None or Path(origin).resolve().is_relative_to(ROOT / "kernels"), f"uninstall kernels: {origin}"


def test_no_python_file_is_longer_than_400_lines() -> None:
    files = [p for p in ROOT.glob("*/**/*.py") if ".venv" not in p.parts and "build" not in p.parts]
    assert len(files) > 50
    long = {str(p.relative_to(ROOT)): n for p in files if (n := len(p.read_text().splitlines())) > 400}
    assert not long
