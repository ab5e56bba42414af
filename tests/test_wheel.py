"""The wheel holds one package, `smoe`, and runs outside the checkout."""

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GENERATE = ["generate", "--in-process", "--prompt", "Once upon a time", "--max-tokens", "4", "--json"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    source = tmp_path_factory.mktemp("source") / "smoe"
    subprocess.run(["git", "clone", "-q", "--no-hardlinks", str(ROOT), str(source)], check=True)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = out.glob("smoe-*.whl")
    return path


def _generate(python_folder: Path, cwd: Path) -> dict[str, object]:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [str(python_folder / "smoe"), *GENERATE], capture_output=True, text=True, cwd=cwd, env=env, check=False
    )
    assert done.returncode == 0, done.stderr
    [answer] = json.loads(done.stdout)
    assert isinstance(answer, dict)
    return answer


def test_wheel_holds_one_package_with_its_assets(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"smoe"}
    for needed in ("smoe/py.typed", "smoe/assets/builtin/model.safetensors", "smoe/kernels/__init__.py"):
        assert needed in names
    assert any(name.startswith("smoe/kernels/cpu/lib/") and name.endswith(".so") for name in names)


def test_wheel_generates_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """A new environment with the wheel alone; third-party packages are borrowed from this one through a .pth file,
    whose own .pth files (the editable install of smoe among them) Python does not follow."""
    folder = tmp_path / "env"
    venv.create(folder, with_pip=False)
    [site] = folder.glob("lib/python*/site-packages")
    install = [sys.executable, "-m", "pip", "--python", str(folder), "install", "-q", "--no-deps", str(wheel)]
    subprocess.run(install, check=True)
    [here] = Path(sys.prefix).glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(f"{here}\n")
    answer = _generate(folder / "bin", tmp_path)
    assert len(answer["token_ids"]) == 4  # type: ignore[arg-type]


@pytest.mark.slow
def test_wheel_installs_with_its_dependencies(wheel: Path, tmp_path: Path) -> None:
    folder = tmp_path / "env"
    venv.create(folder, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, "torch"], check=True)
    subprocess.run([*pip, str(wheel)], check=True)
    assert len(_generate(folder / "bin", tmp_path)["token_ids"]) == 4  # type: ignore[arg-type]
