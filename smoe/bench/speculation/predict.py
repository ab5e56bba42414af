"""What the simulator says of a method that was measured: same slots and depth, measured acceptance, costs and link."""

from collections.abc import Sequence

import numpy as np
import torch

from smoe.bench.result import Figure
from smoe.bench.speculation import routes
from smoe.bench.speculation.chance import chance_of_keeping
from smoe.bench.speculation.compare import Measured
from smoe.bench.speculation.measure import Run
from smoe.bench.speculation.methods import Method
from smoe.bench.speculation.report import tpot_ms
from smoe.bench.speculation.setting import Setting
from smoe.core.draft import SELF_DRAFT
from smoe.core.link_model import LinkModel
from smoe.core.route_trace import DECODE, PREFILL, RouteTrace
from smoe.models.bank import ResidentBank
from smoe.models.loading import open_checkpoint
from smoe.offload.ahead import PAUSE_SHARE
from smoe.offload.policies.spec import parse_policies
from smoe.sim.drafts import SimDraft
from smoe.sim.predict import usable
from smoe.sim.simulate import simulate

ACCURACIES = (1.0, 0.85, 0.7, 0.55, 0.4)


def trace_of(measured: Measured, base: str) -> RouteTrace:
    """Routes of every prompt and answer of the method `base`, as the model before its inflation takes them."""
    checkpoint, dtype = open_checkpoint("builtin"), torch.float32
    params = checkpoint.params(dtype=dtype, device="cpu")
    bank = ResidentBank(checkpoint.spec, lambda *key: checkpoint.read_expert(*key, dtype=dtype))
    # The last token of an answer never goes in.
    texts = [
        (*prompt, *run.answers[0][:-1])
        for key, prompts in measured.prompts.items()
        for prompt, run in zip(prompts, measured.runs[base][key], strict=True)
    ]
    prompts = [len(prompt) for each in measured.prompts.values() for prompt in each]
    read = routes.read(checkpoint, params, bank, dtype, texts)
    phases = [
        np.where(np.arange(len(text)) < prompt, PREFILL, DECODE) for text, prompt in zip(texts, prompts, strict=True)
    ]
    router = checkpoint.spec.moe(checkpoint.spec.moe_layers[0]).router
    return RouteTrace(
        fingerprint=checkpoint.fingerprint,
        num_experts=router.num_experts,
        top_k=router.top_k,
        layers=tuple(checkpoint.spec.moe_layers),
        token_ids=np.concatenate([np.array(text, np.int32) for text in texts]),
        sequence_start=np.cumsum([0, *map(len, texts)]).astype(np.int64),
        phase=np.concatenate(phases).astype(np.uint8),
        expert_ids=np.concatenate([each.ids_LTK for each in read], axis=1).astype(np.int16),
    )


def predicted_ms(
    setting: Setting, trace: RouteTrace, method: Method, slots: int, runs: Sequence[Run], recall: float | None = None
) -> float:
    """A token of decoding. Of `runs`: acceptance, time a drafted token, bytes a transfer and the link's rate."""
    moved, transfers = (sum(getattr(r.experts, name) for r in runs) for name in ("bytes_moved", "disk_transfers"))
    link = LinkModel(moved / sum(r.experts.transfer_s for r in runs))
    draft = None if method.draft is None else _sim_draft(method, runs, setting.recall if recall is None else recall)
    found = simulate(
        trace,
        usable(method.policy, trace),
        str(slots),
        link=link,
        compute=setting.costs.model(1 + method.depth),
        expert_bytes=moved // max(1, transfers),
        pause_share=PAUSE_SHARE,
        draft=draft,
    )
    assert found.seconds is not None
    assert found.prompt_s is not None
    return 1e3 * (found.seconds - found.prompt_s) / int((trace.phase == DECODE).sum())


def predict(setting: Setting, measured: Measured, base: str) -> None:
    """A figure for each method: prediction over measurement."""
    trace, where = trace_of(measured, base), measured.where()
    for name, method in measured.methods.items():
        if usable(method.policy, trace) != parse_policies(method.policy):
            continue  # it goes by what these routes do not tell
        runs = [run for each in measured.runs[name].values() for run in each]
        guess, real = predicted_ms(setting, trace, method, measured.slots[name], runs), tpot_ms(measured.runs[name])
        setting.add(
            Figure(
                figure=f"{where}, {name}: predicted over measured time a token",
                value=guess / real,
                unit="x",
                bound=f"simulator {guess:.0f}, measured {real:.0f} ms a token",
            )
        )


def predict_accuracy(setting: Setting, measured: Measured, base: str, method: Method) -> list[Figure]:
    """Time a token as fewer of the draft's choices are the model's, simulated."""
    trace, runs = trace_of(measured, base), [run for each in measured.runs[method.name].values() for run in each]
    slots = measured.slots[method.name]
    times = {a: predicted_ms(setting, trace, method, slots, runs, recall=a) for a in ACCURACIES}
    where = f"{measured.where()}, {method.name}"
    figures = [
        Figure(figure=f"{where}: simulated, {100 * a:.0f} % of routes right", value=ms, unit="ms a token")
        for a, ms in times.items()
    ]
    worst = min(times)
    slope = float(np.polyfit([10 * a for a in times], list(times.values()), 1)[0])
    bound = f"{times[1.0]:.0f} to {times[worst]:.0f} ms a token, {-slope:.1f} ms for every 10 % fewer"
    name = f"{where}: simulated, routes {100 * worst:.0f} % right over all right"
    return [*figures, Figure(figure=name, value=times[worst] / times[1.0], unit="x", bound=bound)]


def _sim_draft(method: Method, runs: Sequence[Run], recall: float) -> SimDraft:
    assert method.draft is not None
    drafted, accepted = (sum(getattr(r.draft, name) for r in runs) for name in ("drafted", "accepted"))
    own = method.draft.model == SELF_DRAFT
    return SimDraft(
        tokens=method.depth,
        accept=chance_of_keeping(drafted=drafted, kept=accepted, windows=sum(r.draft.windows for r in runs)),
        recall=recall if own else 1.0,
        step_s=sum(r.draft.draft_s for r in runs) / max(1, drafted),
        timing=method.draft.prefetch if own else "none",
    )
