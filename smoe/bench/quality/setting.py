"""What is held fixed while policies change: the model in memory, the slots, the texts and their lossless scores."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from smoe.bench.quality.bank import EmulatedBank
from smoe.bench.quality.bootstrap import Nats
from smoe.bench.quality.ideal import IdealCache
from smoe.bench.quality.recording import Recording
from smoe.bench.quality.scoring import Scorer
from smoe.bench.quality.texts import Text
from smoe.core.errors import ConfigError
from smoe.core.expert_memory import ExpertMemory
from smoe.core.route_trace import RouteTrace
from smoe.kernels import ExpertTensors
from smoe.models.bank import ResidentBank
from smoe.models.decoder import Decoder
from smoe.models.loading import Checkpoint
from smoe.offload.policies.catalog import Geometry
from smoe.offload.policies.spec import parse_policies


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Texts scored one after the other by one cache, which `warm_up` has filled before; it is not scored."""

    name: str
    warm_up: Text
    texts: Sequence[Text]

    @property
    def all(self) -> tuple[Text, ...]:
        return (self.warm_up, *self.texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A group without substitution: nats of its texts, and routes of warm-up and texts."""

    group: Group
    nats: Sequence[Nats]
    trace: RouteTrace


class Model:
    """A checkpoint in fp32 with all its experts in memory, and scorers over it."""

    def __init__(self, checkpoint: Checkpoint, expert_memory: str) -> None:
        spec, memory = checkpoint.spec, ExpertMemory.parse(expert_memory)
        if memory.kind in ("all", "auto"):
            raise ConfigError("expert_memory", expert_memory, "slots a layer, a fraction or bytes: some must miss")
        self.checkpoint = checkpoint
        self._params = checkpoint.params(dtype=torch.float32)
        layers = {layer: checkpoint.read_layer(layer, dtype=torch.float32) for layer in spec.moe_layers}
        self._resident = ResidentBank(spec, lambda layer, expert: layers[layer][expert])
        router = spec.moe(spec.moe_layers[0]).router
        self.geometry = Geometry(layers=spec.moe_layers, num_experts=router.num_experts, top_k=router.top_k)
        self.num_slots = memory.slots(
            num_layers=len(spec.moe_layers),
            num_experts=router.num_experts,
            slot_bytes=_nbytes(layers[spec.moe_layers[0]][0]),
            free_bytes=0,
        )

    def cache(self, policy: str) -> IdealCache:
        """Empty, with floors as an engine gives them."""
        layers = self.geometry.layers
        share = self.num_slots // len(layers)
        policies = parse_policies(policy).build(self.geometry)
        return IdealCache(policies, layers, num_slots=self.num_slots, floor=share, max_background=share)

    def scorer(self, cache: IdealCache | None = None) -> Scorer:
        """With the outputs that `cache` decides on; with every expert in memory without one."""
        bank = self._resident if cache is None else EmulatedBank(self._resident, cache)
        spec = self.checkpoint.spec
        return Scorer(Decoder(spec, self._params, bank, dtype=torch.float32), max_tokens=spec.max_positions)

    def reference(self, group: Group) -> Reference:
        geometry, scorer = self.geometry, self.scorer()
        recording = Recording(
            fingerprint=self.checkpoint.fingerprint,
            num_experts=geometry.num_experts,
            top_k=geometry.top_k,
            layers=geometry.layers,
        )
        nats = []
        for text in group.all:
            nats.append(scorer.nats(text.token_ids, route_sink=recording.see))
            recording.end_text(text.token_ids)
        return Reference(group=group, nats=nats[1:], trace=recording.trace())


def _nbytes(expert: ExpertTensors) -> int:
    return sum(tensor.nbytes for tensor in expert if tensor is not None)
