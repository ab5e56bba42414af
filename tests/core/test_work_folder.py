from pathlib import Path

import pytest

from smoe.core.errors import ConfigError
from smoe.core.work_folder import open_work_folder


def test_it_goes_on_with_equal_arguments_only(tmp_path: Path) -> None:
    folder = tmp_path / "w"
    assert not open_work_folder(folder, {"seed": 1, "slots": (2, 3)})
    assert open_work_folder(folder, {"slots": [2, 3], "seed": 1})
    with pytest.raises(ConfigError, match=r"^seed: 2 \(1, with which .*w was begun; remove that folder"):
        open_work_folder(folder, {"seed": 2, "slots": (2, 3)})
    with pytest.raises(ConfigError, match=r"^theta: 0\.5 \(None, with which"):
        open_work_folder(folder, {"seed": 1, "slots": (2, 3), "theta": 0.5})
