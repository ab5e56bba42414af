"""Small experts in files, laid out by hand, and banks over them."""

import math
from dataclasses import dataclass, field
from pathlib import Path

import torch

from smoe.models.bank import ResidentBank, RoutedRows
from smoe.models.loading import ExpertSource, TensorRange
from smoe.models.spec import DecoderSpec, DenseSpec, GQASpec, LayerSpec, MoESpec, RouterSpec
from smoe.offload.bank import OffloadedBank
from smoe.offload.drafted import PlanOrder
from smoe.offload.in_place import InPlace
from smoe.offload.policies.catalog import Geometry
from smoe.offload.policies.protocols import Costs, PolicySet
from smoe.offload.policies.spec import parse_policies
from smoe.offload.pools import SecondCore
from smoe.offload.shelf import Shelf
from smoe.offload.store import DiskStore, Store


@dataclass
class ExpertFiles:
    """A model's experts in files. Neither size is a power of two; expert tensors cross pages at any offset."""

    folder: Path
    hidden: int = 40
    ffn: int = 24
    num_experts: int = 7
    top_k: int = 3
    moe_layers: tuple[int, ...] = (1, 2, 4)
    stored: torch.dtype = torch.bfloat16
    gap_bytes: int = 0
    start_bytes: int = 0
    one_file: bool = True
    bias: bool = False
    spec: DecoderSpec = field(init=False)
    sources: dict[tuple[int, int], ExpertSource] = field(init=False)

    def __post_init__(self) -> None:
        router = RouterSpec(num_experts=self.num_experts, top_k=self.top_k, scoring="softmax", normalize=True)
        moe = MoESpec(router=router, ffn=self.ffn, expert_bias=self.bias)
        attention = GQASpec(num_heads=1, num_kv_heads=1, head_dim=8, scale=1.0, rope=None)
        mlps = [moe if i in self.moe_layers else DenseSpec(ffn=8) for i in range(max(self.moe_layers) + 1)]
        self.spec = DecoderSpec(
            family="test",
            hidden=self.hidden,
            vocab=16,
            layers=tuple(LayerSpec(attention=attention, mlp=mlp) for mlp in mlps),
            norm="rms",
            norm_eps=1e-6,
            tied_head=True,
            max_positions=64,
        )
        self.sources = self._write()

    def source(self, layer: int, expert: int) -> ExpertSource:
        return self.sources[layer, expert]

    def paths(self) -> list[Path]:
        return sorted({Path(part.path) for source in self.sources.values() for part in source.parts.values()})

    def resident(self, dtype: torch.dtype) -> ResidentBank:
        def read(layer: int, expert: int):
            raw = {}
            for name, part in self.sources[layer, expert].parts.items():
                with open(part.path, "rb") as file:
                    file.seek(part.offset)
                    raw[name] = torch.frombuffer(bytearray(file.read(part.nbytes)), dtype=torch.uint8)
            return self.sources[layer, expert].assemble(raw, dtype)

        return ResidentBank(self.spec, read)

    def offloaded(
        self,
        dtype: torch.dtype,
        slots_a_layer: int,
        *,
        extra: int = 0,
        floor: int | None = None,
        policies: PolicySet | str = "",
        over: Store | None = None,
        max_background: int | None = None,
        max_slots: int | None = None,
        in_place: InPlace | None = None,
        costs: Costs | None = None,
        beside: SecondCore | None = None,
        plan_order: PlanOrder = "deadline",
        max_planned: int | None = None,
        rolling: int | None = None,
        poison: bool = True,
        **store: int,
    ) -> OffloadedBank:
        """`slots_a_layer` times the layers plus `extra` slots; those above `floor` a layer are shared.

        The store is `over`, or a DiskStore.
        """
        shelf = Shelf(self.spec, self.source, dtype)
        if isinstance(policies, str):
            geometry = Geometry(layers=self.moe_layers, num_experts=self.num_experts, top_k=self.top_k)
            policies = parse_policies(policies).build(geometry)
        return OffloadedBank(
            shelf,
            DiskStore(shelf.layouts, **store) if over is None else over,
            policies,
            max_background=max_background,
            max_slots=max_slots,
            num_slots=slots_a_layer * len(self.moe_layers) + extra,
            floor=slots_a_layer if floor is None else floor,
            in_place=in_place,
            costs=costs,
            beside=beside,
            plan_order=plan_order,
            max_planned=max_planned,
            rolling=rolling,
            poison=poison,
        )

    def _write(self) -> dict[tuple[int, int], ExpertSource]:
        generator = torch.Generator().manual_seed(7)
        shapes = {"gate": (self.ffn, self.hidden), "up": (self.ffn, self.hidden), "down": (self.hidden, self.ffn)}
        if self.bias:
            shapes |= {"gate_bias": (self.ffn,), "up_bias": (self.ffn,), "down_bias": (self.hidden,)}
        contents: dict[Path, bytearray] = {}
        sources = {}
        for layer in self.moe_layers:
            for expert in range(self.num_experts):
                parts = {}
                for name, shape in shapes.items():
                    path = self.folder / ("experts.bin" if self.one_file else f"{layer}-{name}.bin")
                    content = contents.setdefault(path, bytearray(b"\xff" * self.start_bytes))
                    values = (torch.randn(shape, generator=generator) / math.sqrt(shape[-1])).to(self.stored)
                    raw = values.view(-1).view(torch.uint8).numpy().tobytes()
                    parts[name] = TensorRange(str(path), len(content), len(raw), self.stored, shape, name)
                    content += raw + b"\xff" * self.gap_bytes
                sources[layer, expert] = ExpertSource(layer, expert, "rows", parts)
        for path, content in contents.items():
            path.write_bytes(content[: len(content) - self.gap_bytes] if self.gap_bytes else content)
        return sources


@dataclass(frozen=True)
class Call:
    """Arguments of one `apply`, in parts."""

    layer: int
    x_TD: torch.Tensor
    ids_TK: torch.Tensor
    weights_TK: torch.Tensor
    residual_TD: torch.Tensor

    @property
    def rows(self) -> RoutedRows:
        return RoutedRows(self.layer, self.x_TD, self.ids_TK, self.weights_TK)


def random_calls(files: ExpertFiles, dtype: torch.dtype, rows: list[int], *, seed: int = 0) -> list[Call]:
    """One call a layer for each batch size in `rows`, as a decoder makes them."""
    generator = torch.Generator().manual_seed(seed)
    calls = []
    for count in rows:
        for layer in files.moe_layers:
            scores_TE = torch.rand(count, files.num_experts, generator=generator)
            weights_TK, ids_TK = scores_TE.topk(files.top_k)
            x_TD, residual_TD = (torch.randn(count, files.hidden, generator=generator).to(dtype) for _ in range(2))
            calls.append(Call(layer, x_TD, ids_TK.to(torch.int32), weights_TK, residual_TD))
    return calls


def apply(bank: OffloadedBank | ResidentBank, call: Call) -> torch.Tensor:
    return bank.apply(call.rows, call.residual_TD)
