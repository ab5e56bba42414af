"""YAML files read strictly: one document, text keys, none of them twice."""

from pathlib import Path
from typing import Any

from smoe.core.errors import ConfigError


def read_yaml(path: str | Path) -> Any:
    """Raises ConfigError naming the file, and the line where there is one."""
    import yaml

    class Loader(yaml.SafeLoader):
        """PyYAML lets the last of two equal keys win."""

    def mapping(loader: Loader, node: yaml.MappingNode) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = loader.construct_object(key_node, deep=True)
            where = f"{path}: line {key_node.start_mark.line + 1}"
            if not isinstance(key, str):
                raise ConfigError(where, key, "a name")
            if key in found:
                raise ConfigError(where, key, "a key that is not there yet")
            found[key] = loader.construct_object(value_node, deep=True)
        return found

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    try:
        return yaml.load(Path(path).read_text(encoding="utf-8"), Loader)
    except OSError as error:
        raise ConfigError("file", str(path), f"a readable file: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError("file", str(path), f"UTF-8: {error.reason} at byte {error.start}") from error
    except RecursionError as error:
        raise ConfigError("file", str(path), "YAML of moderate depth") from error
    except yaml.YAMLError as error:
        raise ConfigError("file", str(path), f"YAML: {' '.join(str(error).split())}") from error
