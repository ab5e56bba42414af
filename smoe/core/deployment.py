"""Deployment: all that decides how a model is run on a cluster, by section, as a YAML file has it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from smoe.core.cluster_config import ClusterConfig
from smoe.core.config import DEFAULT_POLICY, DType, EngineConfig
from smoe.core.draft import DEFAULT_GROUP_SIZE, DEFAULT_PREFETCH, DraftConfig, PrefetchTiming
from smoe.core.errors import ConfigError
from smoe.core.expert_tier import DEFAULT_TIER
from smoe.core.parallel import ParallelConfig
from smoe.core.serve_config import ServeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSection:
    """`path` is a folder, the same on every node, or `builtin`."""

    path: str = "builtin"
    dtype: DType = "auto"
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSection:
    device: Literal["auto", "cpu", "cuda"] = "auto"
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 2048
    threads: int | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSection:
    memory: str | int | float = "all"
    memory_max: str | int | float | None = None
    policy: str = DEFAULT_POLICY
    tier: str = DEFAULT_TIER
    link: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSection:
    """No draft without a `model`."""

    model: str | None = None
    tokens: int | str = "auto"
    group_size: int = DEFAULT_GROUP_SIZE
    prefetch: PrefetchTiming = DEFAULT_PREFETCH
    auto_off: bool = True
    lossy: bool = False
    residual: bool = False

    def config(self) -> DraftConfig | None:
        """Raises ConfigError, by the names of the flags."""
        if self.model is None:
            for each in fields(self):
                if (value := getattr(self, each.name)) != each.default:
                    raise ConfigError(f"draft_{each.name}", value, "has no effect without draft")
            return None
        return DraftConfig(**{each.name: getattr(self, each.name) for each in fields(self)})


# Where a field of EngineConfig has another name in its section.
_PATHS = {
    "model": "model.path",
    "draft": "draft.model",
    **{f"expert_{each.name}": f"experts.{each.name}" for each in fields(ExpertSection)},
    **{f"draft_{each.name}": f"draft.{each.name}" for each in fields(DraftSection)},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The fields mean what those of EngineConfig, DraftConfig, ParallelConfig, ClusterConfig and ServeConfig do; the
    last are for `smoe serve` alone."""

    model: ModelSection = field(default_factory=ModelSection)
    engine: EngineSection = field(default_factory=EngineSection)
    experts: ExpertSection = field(default_factory=ExpertSection)
    draft: DraftSection = field(default_factory=DraftSection)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    serve: ServeConfig = field(default_factory=ServeConfig)

    def engine_config(self) -> EngineConfig:
        """Raises ConfigError, by the names of EngineConfig."""
        memory, most = self.experts.memory, self.experts.memory_max
        return EngineConfig(
            model=self.model.path,
            dtype=self.model.dtype,
            max_model_len=self.model.max_model_len,
            **{each.name: getattr(self.engine, each.name) for each in fields(EngineSection)},
            expert_memory=str(memory),
            expert_memory_max=None if most is None else str(most),
            expert_policy=self.experts.policy,
            expert_tier=self.experts.tier,
            expert_link=self.experts.link,
            draft=self.draft.config(),
            parallel=self.parallel,
        )

    def check(self) -> None:
        """Raises ConfigError, by section and field, for what no cluster could run."""
        try:
            self.engine_config()
        except ConfigError as error:
            raise ConfigError(path_of(error.field), error.value, error.limit) from error
        gpus, device = self.cluster.gpus, self.engine.device
        if device == "cpu" and gpus:
            raise ConfigError("cluster.gpus", gpus, "0 with engine.device cpu, which would leave them idle")
        if device == "cuda" and gpus == 0:
            raise ConfigError("cluster.gpus", gpus, "1 or more with engine.device cuda")

    def get(self, path: str) -> Any:
        section, name = path.split(".")
        return getattr(getattr(self, section), name)

    def changed(self, values: Mapping[str, Any]) -> "Deployment":
        """With other values by `section.field`. Raises ConfigError, by the field's name alone, where one is refused."""
        by_section: dict[str, dict[str, Any]] = {}
        for path, value in values.items():
            section, name = path.split(".")
            by_section.setdefault(section, {})[name] = value
        return replace(self, **{name: replace(getattr(self, name), **new) for name, new in by_section.items()})

    def as_plain(self) -> dict[str, dict[str, Any]]:
        """Sections of plain values, defaults included, as YAML and JSON take them."""
        plain = asdict(self)
        plain["cluster"]["resources"] = dict(self.cluster.resources)
        return plain


def path_of(name: str) -> str:
    """`section.field` of a field of EngineConfig."""
    if name in _PATHS:
        return _PATHS[name]
    sections = {each.name: each.default_factory for each in fields(Deployment)}
    return next((f"{s}.{name}" for s, made in sections.items() if name in _names(made)), name)


def _names(section: Any) -> list[str]:
    return [each.name for each in fields(section)]
