"""The README's commands run as they stand; long ones are checked to exist."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"`(smoe [^`]+)`", README)
TARGETS = sorted(set(re.findall(r"`?make ([a-z-]+)", README)))
LONG = (
    *("smoe convert inflate", "smoe chat", "smoe doctor", "smoe profile", "smoe regroup", "smoe placement"),
    *("smoe serve", "smoe top", "smoe bench slo", "smoe bench throughput", "smoe bench compare"),
)


def _run(command: str, tmp_path: Path, *extra: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", *shlex.split(command), *extra]
    return subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, check=False, stdin=subprocess.DEVNULL)


def test_readme_names_commands() -> None:
    assert len(COMMANDS) >= 8


@pytest.mark.ray
@pytest.mark.parametrize("command", [c for c in COMMANDS if not c.startswith(LONG)])
def test_command_runs(command: str, tmp_path: Path) -> None:
    done = _run(command, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith(LONG)])
def test_long_command_has_these_options(command: str, tmp_path: Path) -> None:
    options = [word for word in shlex.split(command) if word.startswith("--")]
    verbs = [word for word in shlex.split(command)[1:3] if not word.startswith("-")]
    done = _run(" ".join(["smoe", *verbs]), tmp_path, "--help")
    assert done.returncode == 0, done.stderr
    assert all(option in done.stdout for option in options)


def test_library_example_runs(tmp_path: Path) -> None:
    [block] = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("target", TARGETS)
def test_make_target_exists(target: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)
