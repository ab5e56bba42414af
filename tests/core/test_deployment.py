"""Deployments: strict about what they read, the same defaults as everywhere, and back to YAML without loss."""

from dataclasses import fields
from pathlib import Path

import pytest

from smoe.core.config import EngineConfig
from smoe.core.deployment import Deployment, path_of
from smoe.core.deployment_file import deployment_yaml, read_deployment
from smoe.core.errors import ConfigError

FULL = """
model: {path: /models/m, dtype: bfloat16, max_model_len: 4096}
engine: {device: cuda, max_num_seqs: 8, max_num_batched_tokens: 512, threads: 3, seed: 5}
experts: {memory: all}
parallel: {tensor_parallel_size: 4, schedule: speculative, placement: p, capacity_factor: 2, dedup: false,
           timeout_s: 5, step_timeout_s: 50}
cluster: {strategy: SPREAD, cpus: 2, gpus: 1, resources: {rack-a: 0.5}, placement_timeout_s: 9}
"""


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return tmp_path / "d.yaml"


def test_an_empty_file_is_the_default_engine(written: Path) -> None:
    written.write_text("")
    assert read_deployment(written) == Deployment()
    assert Deployment().engine_config() == EngineConfig()


def test_every_field_of_the_engine_that_is_not_of_one_run_has_a_place() -> None:
    """A new field of EngineConfig must be in a deployment too."""
    default = Deployment()
    for each in fields(EngineConfig):
        if not each.name.startswith("record_") and each.name != "parallel":
            assert default.get(path_of(each.name)) == getattr(EngineConfig(), each.name), each.name


def test_every_value_arrives(written: Path) -> None:
    written.write_text(FULL)
    deployment = read_deployment(written)
    config = deployment.engine_config()
    assert (config.model, config.dtype, config.max_model_len) == ("/models/m", "bfloat16", 4096)
    assert (config.device, config.max_num_seqs, config.max_num_batched_tokens) == ("cuda", 8, 512)
    assert (config.threads, config.seed, config.parallel) == (3, 5, deployment.parallel)
    assert (config.parallel.capacity_factor, config.parallel.step_timeout_s) == (2, 50)
    assert dict(deployment.cluster.resources) == {"rack-a": 0.5}


def test_experts_arrive(written: Path) -> None:
    written.write_text("experts: {memory: 4, memory_max: 0.5, policy: 'evict=lfu', tier: 'host:1GiB', link: 2GB/s}")
    config = read_deployment(written).engine_config()
    assert (config.expert_memory, config.expert_memory_max, config.expert_policy) == ("4", "0.5", "evict=lfu")
    assert (config.expert_tier, config.expert_link) == ("host:1GiB", "2GB/s")


@pytest.mark.parametrize("text", ["", FULL])
def test_the_resolved_deployment_reads_back_as_the_same(written: Path, text: str) -> None:
    written.write_text(text)
    deployment = read_deployment(written)
    written.write_text(deployment_yaml(deployment))
    assert read_deployment(written) == deployment


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modle: {}", r"modle: \{\} \(no such section; one of model, engine, experts, draft, parallel, cluster, ser"),
        ("[]", r"d.yaml: \[\] \(a mapping of model, engine"),
        ("engine: 3", r"engine: 3 \(a mapping of device, max_num_seqs"),
        ("model: {pth: x}", r"model.pth: 'x' \(no such field; one of path, dtype, max_model_len\)"),
        ("model: {max_model_len: '3'}", r"model.max_model_len: '3' \(an integer or null\)"),
        ("model: {dtype: int3}", r"model.dtype: 'int3' \(one of auto, float32, bfloat16\)"),
        ("model: {max_model_len: 0}", r"model.max_model_len: 0 \(integer >= 1\)"),
        ("engine: {max_num_seqs: true}", r"engine.max_num_seqs: True \(an integer\)"),
        ("engine: {max_num_seqs: null}", r"engine.max_num_seqs: None \(an integer\)"),
        ("engine: {threads: 0}", r"engine.threads: 0 \(integer >= 1\)"),
        ("experts: {memory: 150%}", r"experts.memory: '150%' \(a fraction is at most 1"),
        ("experts: {tier: host}", r"experts.tier: 'host' \(only with"),
        ("parallel: {schedule: sideways}", r"parallel.schedule: 'sideways' \(one of allreduce, scatter, speculative\)"),
        ("parallel: {dedup: false}", r"parallel.dedup: False \(has no effect on one device"),
        ("parallel: {dedup: 'no'}", r"parallel.dedup: 'no' \(true or false\)"),
        ("parallel: {step_timeout_s: 0}", r"parallel.step_timeout_s: 0 \(seconds above 0\)"),
        ("cluster: {strategy: STRICT_SPREAD}", r"cluster.strategy: 'STRICT_SPREAD' \(one of PACK, STRICT_PACK, SPREAD"),
        ("cluster: {cpus: 1.5}", r"cluster.cpus: 1.5 \(an integer or null\)"),
        ("cluster: {resources: {CPU: 2}}", r"cluster.resources.CPU: 2 \(a custom resource; cpus and gpus have fields"),
        ("cluster: {resources: {a: x}}", r"cluster.resources: \{'a': 'x'\} \(a mapping of text to a number\)"),
        ("cluster: {resources: {a: 0}}", r"cluster.resources.a: 0 \(above 0\)"),
        ("engine: {device: cpu}\ncluster: {gpus: 1}", r"cluster.gpus: 1 \(0 with engine.device cpu"),
        ("engine: {device: cuda}\ncluster: {gpus: 0}", r"cluster.gpus: 0 \(1 or more with engine.device cuda\)"),
        ("model: {dtype: auto, dtype: auto}", r"line 1: 'dtype' \(a key that is not there yet\)"),
        ("model: [", r"YAML"),
    ],
)
def test_what_is_refused_names_path_value_and_expectation(written: Path, text: str, message: str) -> None:
    written.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_deployment(written)
    assert str(written) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_changes_keep_what_they_do_not_name() -> None:
    changed = Deployment().changed({"experts.memory": "25%", "parallel.tensor_parallel_size": 2})
    assert (changed.experts.memory, changed.parallel.size) == ("25%", 2)
    assert changed.cluster == Deployment().cluster
    with pytest.raises(ConfigError, match=r"^tensor_parallel_size: 0"):
        changed.changed({"parallel.tensor_parallel_size": 0})
