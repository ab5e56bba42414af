"""Other engines' formats, read back by their own rules."""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from smoe.core.errors import ConfigError, PlacementError
from smoe.core.placement import Placement
from smoe.core.placement_build import contiguous, with_replicas
from smoe.core.placement_export import eplb_arrays, export, tensorrt_llm_yaml
from tests.core.placements import placement


def made() -> Placement:
    base = contiguous(fingerprint="f", num_experts=6, layers=(1, 4), num_devices=3)
    return with_replicas(base, [[[5], [0], [0]], [[2], [1], [1]]])


def test_eplb_arrays_agree_with_each_other() -> None:
    arrays = eplb_arrays(made())
    assert {name: array.dtype for name, array in arrays.items()} == dict.fromkeys(arrays, np.dtype(np.int64))
    phy2log, log2phy, logcnt = (arrays[name] for name in ("phy2log", "log2phy", "logcnt"))
    assert (phy2log.shape, log2phy.shape, logcnt.shape) == ((2, 9), (2, 6, 3), (2, 6))
    assert logcnt.sum(axis=1).tolist() == [9, 9]
    assert arrays["layers"].tolist() == [1, 4]
    for layer in range(2):
        # What an engine that was given these does: the slot of copy r of an expert holds that expert.
        for expert in range(6):
            count = logcnt[layer, expert]
            assert (phy2log[layer, log2phy[layer, expert, :count]] == expert).all()
            assert (log2phy[layer, expert, count:] == -1).all()
        assert sorted(log2phy[layer][log2phy[layer] >= 0].tolist()) == list(range(9)), "every slot once"


def test_tensorrt_llm_has_its_keys() -> None:
    fields = yaml.safe_load(tensorrt_llm_yaml(made()))
    assert list(fields) == ["num_slots", "initial_global_assignments", "layer_updates_per_iter"]
    assert (fields["num_slots"], fields["layer_updates_per_iter"]) == (9, 0)
    assert fields["initial_global_assignments"] == {1: [0, 1, 5, 2, 3, 0, 4, 5, 0], 4: [0, 1, 2, 2, 3, 1, 4, 5, 1]}
    assert len(tensorrt_llm_yaml(made()).splitlines()) == 5, "a layer a line"


def test_files(tmp_path: Path) -> None:
    export(made(), "eplb", tmp_path / "maps.npz")
    export(made(), "eplb", tmp_path / "maps.safetensors")
    export(made(), "tensorrt-llm", tmp_path / "balancer.yaml")
    npz, tensors = np.load(tmp_path / "maps.npz"), load_file(tmp_path / "maps.safetensors")
    for name, array in eplb_arrays(made()).items():
        assert np.array_equal(npz[name], array)
        assert np.array_equal(tensors[name], array)
    assert (tmp_path / "balancer.yaml").read_text() == tensorrt_llm_yaml(made())


def test_what_has_no_words_there(tmp_path: Path) -> None:
    for form, engine in (("eplb", "EPLB"), ("tensorrt-llm", "TensorRT-LLM")):
        path = tmp_path / ("x.npz" if form == "eplb" else "x.yaml")
        message = f"slots_of_device: [3, 2, 2] ({engine} deals the same number to every device)"
        with pytest.raises(PlacementError, match=re.escape(message)):
            export(placement(), form, path)
        assert not path.exists()
    with pytest.raises(ConfigError, match=r"format: 'vllm' \(one of eplb, tensorrt-llm\)"):
        export(made(), "vllm", "x.npz")
    with pytest.raises(ConfigError, match=r"out: 'x\.npz' \(a name that ends in \.yaml or \.yml for tensorrt-llm\)"):
        export(made(), "tensorrt-llm", "x.npz")
