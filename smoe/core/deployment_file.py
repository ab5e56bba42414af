"""Deployments as strict YAML: every field has a default, none may be unknown."""

from dataclasses import fields
from pathlib import Path

from smoe.core.deployment import Deployment
from smoe.core.errors import ConfigError
from smoe.core.typed_fields import from_mapping
from smoe.core.yaml_file import read_yaml


def read_deployment(path: str | Path) -> Deployment:
    """Raises ConfigError naming the file, section and field, the value and what was expected."""
    raw = read_yaml(path)
    sections = {each.name: each.type for each in fields(Deployment)}
    raw = {} if raw is None else raw
    if not isinstance(raw, dict):
        raise ConfigError(str(path), raw, f"a mapping of {', '.join(sections)}")
    try:
        made = {}
        for name, section in raw.items():
            if name not in sections:
                raise ConfigError(name, section, f"no such section; one of {', '.join(sections)}")
            made[name] = from_mapping(sections[name], section, name)  # type: ignore[arg-type]
        deployment = Deployment(**made)
        deployment.check()
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.field}", error.value, error.limit) from error
    return deployment


def deployment_yaml(deployment: Deployment) -> str:
    """What `read_deployment` reads back as the same."""
    import yaml

    return yaml.safe_dump(deployment.as_plain(), sort_keys=False)
