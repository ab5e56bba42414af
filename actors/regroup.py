"""Layers of a regroup job as Ray tasks."""

from dataclasses import replace
from typing import Any

from smoe.clustering.layer_job import LayerResult, LayerRules, solve_layer
from smoe.engine.rss import peak_rss_bytes


def solve_and_measure(layer: Any, rules: LayerRules) -> LayerResult:
    """`solve_layer`, with the most memory that the process has held since it started."""
    return replace(solve_layer(layer, rules), peak_rss_bytes=peak_rss_bytes())
