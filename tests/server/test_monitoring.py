"""The dashboard and the scrape example speak of what a server says."""

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import smoe
from tests.metrics.pages import page

FOLDER = Path(smoe.__file__).parent / "assets" / "monitoring"
DASHBOARD = json.loads((FOLDER / "grafana.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel.get("targets", ())]
SAMPLES = [s for family in text_string_to_metric_families(page()) for s in family.samples]
NAMES = {sample.name for sample in SAMPLES}
LABELS = {
    name: {label for sample in SAMPLES if sample.name == name for label in sample.labels} | {"instance", "replica"}
    for name in NAMES
}
_METRIC = re.compile(r"smoe:\w+")


def named(text: str) -> set[str]:
    return set(_METRIC.findall(text))


@pytest.mark.parametrize("file", ["grafana.json", "prometheus.yml", "README.md"])
def test_every_metric_named_exists(file: str) -> None:
    text = (FOLDER / file).read_text()
    found = named(text)
    assert found
    families = {name.removesuffix(end) for name in NAMES for end in ("_bucket",)}
    assert found <= NAMES | families


def test_every_metric_is_on_the_dashboard_or_says_less_than_one_that_is() -> None:
    shown = named(" ".join(EXPRESSIONS))
    left = {name for name in NAMES - shown if not name.endswith(("_count", "_sum", "_created"))}
    assert left == {
        "smoe:model_info",
        "smoe:counting_since_seconds",
        "smoe:kv_cache_rows",
        "smoe:expert_bytes_total",
        "smoe:expert_compulsory_misses_total",
        "smoe:expert_computed_in_place_rows_total",
        "smoe:expert_transfer_seconds_total",
        "smoe:link_transfers_total",
    }


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_labels_are_those_of_the_metric(expression: str) -> None:
    assert expression.count("(") == expression.count(")")
    for name, selector in re.findall(r"(smoe:\w+)\{([^}]*)\}", expression):
        assert {part.split("=")[0].rstrip("!") for part in selector.split(",")} <= LABELS[name]
    grouped = {label.strip() for by in re.findall(r"by \(([^)]*)\)", expression) for label in by.split(",")}
    assert grouped <= set.union(*(LABELS[name] for name in named(expression)))
    # Quantiles are of buckets, counters are shown as rates, levels are not.
    assert ("histogram_quantile" in expression) == ("_bucket" in expression)
    for name in named(expression):
        counted = name.endswith(("_total", "_bucket"))
        assert counted == (f"rate({name}" in expression) or name == "smoe:device_choices_total"


def test_values_of_labels_in_expressions_exist() -> None:
    for name, label, value in re.findall(r'(smoe:\w+)\{[^}]*?(outcome|link)="(\w+)"', " ".join(EXPRESSIONS)):
        assert any(s.name == name and s.labels.get(label) == value for s in SAMPLES)


def test_panels_have_places_of_their_own() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    for panel in PANELS:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
    for one, other in combinations((panel["gridPos"] for panel in PANELS), 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]


def test_the_scrape_example_is_of_our_default_port() -> None:
    [job] = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    assert job["metrics_path"] == "/metrics"
    assert job["static_configs"] == [{"targets": ["127.0.0.1:8000"]}]
