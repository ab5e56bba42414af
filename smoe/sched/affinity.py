"""How much of a prompt's work the experts of each data-parallel group would do, by token tables."""

from collections.abc import Sequence

import numpy as np

from smoe.core.placement import RoutingTables


class GroupAffinity:
    """An Affinity (smoe.sched.routing). A token votes for the group of its device, with its confidence, averaged over
    the layers of the tables; an id that they do not know has no vote."""

    def __init__(self, tables: RoutingTables, *, num_groups: int, devices_per_group: int) -> None:
        """Device d is in group d // devices_per_group."""
        layers, vocab = tables.token_device.shape
        self._score_VG = np.zeros((vocab, num_groups), dtype=np.float32)
        ids_V = np.arange(vocab)
        for device_V, confidence_V in zip(tables.token_device, tables.token_confidence, strict=True):
            self._score_VG[ids_V, device_V // devices_per_group] += confidence_V.astype(np.float32) / layers

    def __call__(self, prompt_token_ids: Sequence[int]) -> list[float]:
        ids = np.asarray(prompt_token_ids, dtype=np.int64)
        known = ids[(ids >= 0) & (ids < len(self._score_VG))]
        scores: list[float] = self._score_VG[known].sum(axis=0, dtype=np.float64).tolist()
        return scores
