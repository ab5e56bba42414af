import pytest

from smoe.core.config import EngineConfig
from smoe.core.errors import ConfigError
from smoe.core.expert_tier import ExpertTier


@pytest.mark.parametrize(
    ("text", "tiers", "nbytes"),
    [
        ("disk", ("disk",), None),
        ("host", ("host",), None),
        ("host:2GiB", ("disk", "host"), 2 << 30),
        ("host:500 MB", ("disk", "host"), 500e6),
        (" host:4096 ", ("disk", "host"), 4096),
    ],
)
def test_tiers_in_words(text: str, tiers: tuple[str, ...], nbytes: float | None) -> None:
    tier = ExpertTier.parse(text)
    assert tier.tiers == tiers
    assert (None if tier.host_memory is None else tier.host_memory.value) == nbytes


@pytest.mark.parametrize("text", ["", "gpu", "disk:", "disk:1GB", "host:", "host:0", "host:-1", "host:25%", "host:all"])
def test_no_tiers(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^expert_tier: '.*' \(disk, host \(all experts in host memory"):
        EngineConfig(expert_memory="25%", expert_tier=text)


@pytest.mark.parametrize("text", ["host", "host:1GB"])
def test_a_tier_that_would_have_no_effect(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^expert_tier: '.*' \(only with expert_memory below `all`"):
        EngineConfig(expert_tier=text)
