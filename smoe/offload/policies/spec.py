"""One string, or a YAML mapping, names a combination of policies.

    evict=least-stale:cyclic,prefetch=gate:threshold=0.6,miss=wait
    quality-first,prefetch=gate                                  a preset, then what differs from it

Policies are separated by commas, each `kind=name`, with parameters after colons: `parameter=value`, or only the value
where it is a word that says which. As YAML: {evict: least-stale:cyclic, prefetch: {name: gate, threshold: 0.6}}.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from smoe.core.errors import ConfigError
from smoe.offload.policies.admission import Background, Resetting
from smoe.offload.policies.catalog import ADMIT_BESIDE, ALIASES, CATALOG, DEFAULTS, PRESETS, Context, Geometry, Policy
from smoe.offload.policies.levels import Telling, UtilityLevels
from smoe.offload.policies.params import Word, write
from smoe.offload.policies.protocols import PolicySet

FIELD = "policies"


@dataclass(frozen=True, slots=True)
class Choice:
    """A policy of `kind` and all its parameters, in the catalogue's order; None is worked out when it is made."""

    kind: str
    name: str
    values: tuple[tuple[str, Any], ...]

    @property
    def policy(self) -> Policy:
        return CATALOG[self.kind][self.name]

    def __str__(self) -> str:
        params = self.policy.params
        told = [(key, value) for key, value in self.values if value != params[key].default]
        words = [write(value) if isinstance(params[key], Word) else f"{key}={write(value)}" for key, value in told]
        return f"{self.kind}={':'.join([self.name, *words])}"


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """Made by `parse_policies`; `str` is the canonical text, which parses to an equal spec."""

    evict: Choice
    prefetch: Choice
    miss: Choice
    admit: Choice

    @property
    def choices(self) -> tuple[Choice, ...]:
        return self.evict, self.prefetch, self.miss, self.admit

    @property
    def lossy(self) -> bool:
        return any(choice.policy.lossy for choice in self.choices)

    @property
    def needs_future(self) -> bool:
        return any(choice.policy.needs_future for choice in self.choices)

    def __str__(self) -> str:
        return ",".join(str(choice) for choice in self.choices)

    def describe(self) -> str:
        """One line a policy."""
        lines = [f"{choice}: {choice.policy.about}" for choice in self.choices]
        return "\n".join([*lines, "lossy: outputs differ from the model's"] if self.lossy else lines)

    def check_tiers(self, tiers: Collection[str]) -> None:
        """Raises ConfigError where a policy cannot work with experts kept in `tiers` ("disk", "host") only."""
        if self.miss.name in ("compute", "auto") and "host" not in tiers:
            limit = f"experts are kept in {', '.join(tiers)}: computing one where it is needs a copy in host memory"
            raise ConfigError(f"{FIELD}.miss", self.miss.name, limit)

    def check_live(self) -> None:
        """Raises ConfigError where a policy needs to know the future."""
        for choice in self.choices:
            if choice.policy.needs_future:
                limit = "needs a trace: only a simulation knows the future"
                raise ConfigError(f"{FIELD}.{choice.kind}", choice.name, limit)

    def build(self, geometry: Geometry, *, seed: int = 0, future: Any = None) -> PolicySet:
        """New policies without history. `future` (a `Future`) is what the passes to come will ask for, in simulation;
        ConfigError where it is needed and None."""
        if future is None:
            self.check_live()
        context = Context(geometry=geometry, seed=seed, future=future)
        evict = self.evict.policy.make(dict(self.evict.values), context)
        context = replace(context, eviction=evict)
        prefetch, miss, admit = (choice.policy.make(dict(choice.values), context) for choice in self.choices[1:])
        if isinstance(evict, UtilityLevels):
            miss = Telling(miss, evict) if evict.balances else miss
        if isinstance(admit, Background):
            evict = Resetting(evict, admit)
        return PolicySet(eviction=evict, prefetch=prefetch, miss=miss, admission=admit)


def parse_policies(text: str | Mapping[str, Any]) -> PolicySpec:
    """Raises ConfigError with the field, the value and what it may be; kinds left out take their defaults."""
    told = _from_mapping(text) if isinstance(text, Mapping) else _from_text(text)
    choices = {kind: told.get(kind) or _choice(kind, default, []) for kind, default in DEFAULTS.items()}
    beside = ADMIT_BESIDE.get(choices["miss"].name)
    if beside is not None and "admit" not in told and choices["prefetch"].name != "utility":
        choices["admit"] = _choice("admit", beside, [])
    spec = PolicySpec(**choices)
    if spec.admit.name != "always" and spec.miss.name == "wait":
        limit = "only with miss=substitute, compute or auto: with miss=wait all that is missed is loaded anyway"
        raise ConfigError(f"{FIELD}.admit", spec.admit.name, limit)
    _check_utility(spec)
    return spec


def _check_utility(spec: PolicySpec) -> None:
    values = dict(spec.evict.values) if spec.evict.name == "utility" else {"state": "smoothed", "balance": "none"}
    if spec.prefetch.name == "utility" and values["state"] == "smoothed":
        limit = "only with evict=utility:inertial or evict=utility:adaptive, whose score it shares"
        raise ConfigError(f"{FIELD}.prefetch", spec.prefetch.name, limit)
    if values["balance"] != "none" and spec.miss.name not in ("compute", "auto"):
        limit = "only with miss=cpu or auto: without, nothing is computed beside what is in slots"
        raise ConfigError(f"{FIELD}.evict.utility.balance", values["balance"], limit)


def _from_text(text: str) -> dict[str, Choice]:
    if not isinstance(text, str):
        raise ConfigError(FIELD, text, "a text or a mapping")
    if re.match(r"\s*(\{|#|---|\w+\s*:(\s|$))", text):
        return _from_yaml(text)
    preset: dict[str, Choice] = {}
    told: dict[str, Choice] = {}
    for number, item in enumerate(text.split(",") if text.strip() else []):
        kind, equals, rest = (part.strip() for part in item.partition("="))
        if not equals and number == 0:
            preset = _preset(kind)
            continue
        if not equals or not rest:
            raise ConfigError(FIELD, item, "kind=policy, as in evict=lru")
        if kind in told:
            raise ConfigError(f"{FIELD}.{kind}", rest, "given twice")
        name, *words = (word.strip() for word in rest.split(":"))
        told[kind] = _choice(kind, name, [_pair(word) for word in words])
    return preset | told


def _preset(name: str) -> dict[str, Choice]:
    if name not in PRESETS:
        raise ConfigError(FIELD, name, f"kind=policy, as in evict=lru, or a preset: {', '.join(PRESETS)}")
    return _from_text(PRESETS[name])


def _pair(word: str) -> tuple[str | None, str]:
    key, equals, value = word.partition("=")
    return (key, value) if equals else (None, word)


def _from_yaml(text: str) -> dict[str, Choice]:
    import yaml

    try:
        mapping = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(FIELD, text, f"YAML: {' '.join(str(error).split())}") from None
    if not isinstance(mapping, Mapping):
        raise ConfigError(FIELD, text, "a YAML mapping of kinds to policies")
    return _from_mapping(mapping)


def _from_mapping(mapping: Mapping[str, Any]) -> dict[str, Choice]:
    rest = dict(mapping)
    told = _preset(rest.pop("preset")) if "preset" in rest else {}
    for kind, value in rest.items():
        if isinstance(value, str):
            name, *words = (word.strip() for word in value.split(":"))
            told[kind] = _choice(kind, name, [_pair(word) for word in words])
        elif isinstance(value, Mapping) and isinstance(value.get("name"), str):
            told[kind] = _choice(kind, value["name"], [(key, item) for key, item in value.items() if key != "name"])
        else:
            raise ConfigError(f"{FIELD}.{kind}", value, "a policy, or a mapping with its name and parameters")
    return told


def _choice(kind: str, name: str, told: Sequence[tuple[str | None, Any]]) -> Choice:
    """`told` pairs parameters with values; None stands for the one that has the value as a word."""
    if kind not in CATALOG:
        raise ConfigError(FIELD, kind, f"one of {', '.join(CATALOG)}")
    field, name = f"{FIELD}.{kind}", ALIASES.get(name, name)
    if name not in CATALOG[kind]:
        raise ConfigError(field, name, f"one of {', '.join(CATALOG[kind])}")
    policy = CATALOG[kind][name]
    values: dict[str, Any] = {}
    for key, value in told:
        if key is None:
            key = _param_of_word(policy, value)
        if key is None or key not in policy.params:
            raise ConfigError(f"{field}.{name}", value if key is None else key, _accepted(policy))
        if key in values:
            raise ConfigError(f"{field}.{name}.{key}", value, "given twice")
        values[key] = policy.params[key].read(f"{field}.{name}.{key}", value)
    complete = {key: values.get(key, param.default) for key, param in policy.params.items()}
    if (problem := policy.check(complete)) is not None:
        key, limit = problem
        raise ConfigError(f"{field}.{name}.{key}", complete[key], limit)
    return Choice(kind, name, tuple(complete.items()))


def _param_of_word(policy: Policy, word: Any) -> str | None:
    words = (key for key, param in policy.params.items() if isinstance(param, Word) and word in param.choices)
    return next(words, None)


def _accepted(policy: Policy) -> str:
    params = [
        " | ".join(param.choices) if isinstance(param, Word) else f"{key}=..." for key, param in policy.params.items()
    ]
    return f"one of {', '.join(params)}" if params else "it has no parameters"
