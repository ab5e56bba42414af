"""Every file in cluster_configs/ is what its README says, and loads."""

import contextlib
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from smoe.cli import preflight
from smoe.core.config import EngineConfig
from smoe.core.deployment import Deployment
from smoe.core.deployment_file import read_deployment
from smoe.core.errors import ConfigError
from smoe.core.yaml_file import read_yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "cluster_configs"
README = (FOLDER / "README.md").read_text()
RAY_FILES = ("ray_cluster.yaml", "kuberay_rayjob.yaml")
DEPLOYMENTS = sorted(path.name for path in FOLDER.glob("*.yaml") if path.name not in RAY_FILES)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_readme_lists_every_file_and_its_shards() -> None:
    rows = [cells(line) for line in README.splitlines() if line.startswith("| [`")]
    listed = {re.match(r"\[`(.+)`\]\((.+)\)$", row[0])[1]: row[2] for row in rows}  # type: ignore[index]
    assert set(listed) == {path.name for path in FOLDER.glob("*.yaml")}
    for name in DEPLOYMENTS:
        assert listed[name] == str(read_deployment(FOLDER / name).parallel.size)


def test_the_readme_has_every_field_in_order_with_its_default() -> None:
    rows = [cells(line) for line in README.splitlines() if re.match(r"\| `\w+\.\w+` \|", line)]
    plain = Deployment().as_plain()
    expected = [(f"`{s}.{name}`", value) for s, section in plain.items() for name, value in section.items()]
    assert [(row[0], yaml.safe_load(row[2].strip("`"))) for row in rows] == expected
    assert all(len(row) == 4 and row[3] for row in rows)


def test_the_readme_says_a_unit_for_every_number() -> None:
    rows = [cells(line) for line in README.splitlines() if re.match(r"\| `\w+\.\w+` \|", line)]
    for name, unit, default, _ in rows:
        value = yaml.safe_load(default.strip("`"))
        if isinstance(value, (int, float)) and not isinstance(value, bool) and name != "`engine.seed`":
            assert unit, name
        if name.endswith("_s`"):
            assert unit == "seconds"


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_deployments_load(name: str) -> None:
    deployment = read_deployment(FOLDER / name)
    config = deployment.engine_config()
    if name.startswith("cpu_"):
        assert preflight.check(config).info.name == "builtin"
        assert deployment.cluster.gpus is None
    else:
        assert config.device == "cuda"
        assert deployment.cluster.gpus == 1
        assert config.model.startswith("/models/")


def test_the_readme_is_true_about_cuda() -> None:
    """Once CUDA computes, the sentence has to go."""
    from smoe.engine.build import build_runner

    with contextlib.suppress(ConfigError):
        build_runner(EngineConfig(device="cuda")).shutdown()
        pytest.fail("it is not refused, as the README says")
    assert "`device: cuda` is refused before anything starts" in README


def test_ray_up_takes_its_file() -> None:
    util = pytest.importorskip("ray.autoscaler._private.util")
    config = util.prepare_config(read_yaml(FOLDER / "ray_cluster.yaml"))
    util.validate_config(config)
    assert config["max_workers"] == len(config["provider"]["worker_ips"])


def test_the_job_for_kuberay_runs_a_deployment_that_has_room() -> None:
    raw: Any = yaml.safe_load((FOLDER / "kuberay_rayjob.yaml").read_text())
    assert (raw["apiVersion"], raw["kind"]) == ("ray.io/v1", "RayJob")
    python, m, smoe, verb, file, *_ = shlex.split(raw["spec"]["entrypoint"])
    assert [python, m, smoe, verb] == ["python", "-m", "smoe", "generate"]
    deployment = read_deployment(ROOT / file)
    cluster = raw["spec"]["rayClusterSpec"]
    [workers] = cluster["workerGroupSpecs"]
    assert workers["minReplicas"] == workers["replicas"] == workers["maxReplicas"]
    [container] = workers["template"]["spec"]["containers"]
    limits = container["resources"]["limits"]
    assert container["resources"]["requests"] == limits, "or the pods may be put where they do not fit"
    shards_a_node = deployment.parallel.size // workers["replicas"]
    assert limits["nvidia.com/gpu"] == shards_a_node * (deployment.cluster.gpus or 0)
    assert int(limits["cpu"]) >= shards_a_node * (deployment.cluster.cpus or 1)
    mounted = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert any(deployment.model.path.startswith(f"{path}/") for path in mounted)


def test_the_job_has_the_ray_that_is_pinned() -> None:
    raw = yaml.safe_load((FOLDER / "kuberay_rayjob.yaml").read_text())
    version = raw["spec"]["rayClusterSpec"]["rayVersion"]
    assert f"ray=={version}" in (ROOT / "constraints.txt").read_text().splitlines()
