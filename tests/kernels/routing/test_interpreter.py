"""The Triton kernels pass their tests in Triton's interpreter; a launch loads Triton, an import does not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from smoe.kernels.routing.launch import INTERPRETED

ROOT = Path(__file__).parents[3]
FOLDERS = ("routing", "triton_moe")


@pytest.mark.skipif(INTERPRETED, reason="this is the process that interprets")
def test_kernels_in_the_interpreter() -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        *(str(ROOT / "tests" / "kernels" / folder) for folder in FOLDERS),
    ]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.skipif(INTERPRETED, reason="needs no interpreter")
def test_importing_loads_no_triton() -> None:
    files = [(folder, path.stem) for folder in FOLDERS for path in (ROOT / "kernels" / folder).glob("[a-z]*.py")]
    imports = "; ".join(f"import smoe.kernels.{folder}.{module}" for folder, module in sorted(files))
    code = f"import sys; {imports}; import smoe.kernels.combine; print('triton' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "False", done.stderr
