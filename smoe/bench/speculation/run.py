"""`smoe bench speculation`: drafts against waiting for experts, at equal memory, on this machine's disk."""

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from smoe.bench.decode.bound import inflated_folder
from smoe.bench.result import Figure, Result
from smoe.bench.speculation import methods, routes
from smoe.bench.speculation.measure import Engine, Run
from smoe.bench.speculation.methods import Method
from smoe.bench.speculation.pools import measure_pools
from smoe.bench.speculation.prompts import prompt_sets
from smoe.bench.speculation.report import GOAL_RECALL, draft_figures, ratio_figure, same_answers, tpot_ms
from smoe.bench.speculation.utility import measure_utility
from smoe.core.packaged_traces import open_trace
from smoe.models.bank import ResidentBank
from smoe.models.loading import open_checkpoint
from smoe.offload.draft_bank import make_int4_bank

PROMPT_TOKENS = 24
HOST_BYTES_PER_S, DRAFT_S = 8e9, 0.06  # declared, for the simulation of utility alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """`percents` of the experts' bytes; `small` is where an INT4 copy does not fit. `text` tokens are read for
    agreement, of each set."""

    percents: tuple[int, ...]
    small: int
    tokens: int
    repeats: int
    depths: tuple[int, ...]
    batches: tuple[int, ...]
    text: int


FULL = Size(
    percents=(40, 50, 60), small=25, tokens=32, repeats=2, depths=(2, 4, 8, 16), batches=(1, 2, 4, 8, 16, 32), text=170
)
QUICK = Size(percents=(60,), small=25, tokens=16, repeats=1, depths=(4, 8), batches=(1, 4), text=68)


def run(*, quick: bool, cache: Path) -> Result:
    """Takes some twenty minutes on an idle machine, `quick` three. `cache` keeps the inflated model (4.9 GB)."""
    size = QUICK if quick else FULL
    bench = _Bench(size, inflated_folder(cache), quick=quick)
    bench.read_along()
    depth = bench.choose_depth(max(size.percents))
    for percent in size.percents:
        bench.compare(percent, depth)
    bench.compare_small(size.small)
    bench.ablate(max(size.percents), depth)
    bench.in_memory(max(size.percents), depth)
    bench.batches(max(size.percents), depth)
    bench.utility()
    return bench.result


class _Bench:
    def __init__(self, size: Size, folder: Path, *, quick: bool) -> None:
        self._size, self._folder = size, str(folder)
        config = {"model": "builtin inflated to hidden 2048, expert ffn 1024, bfloat16", **asdict(size)}
        self.result = Result(name="speculation-quick" if quick else "speculation", config=config)
        self._checkpoint = open_checkpoint(self._folder)
        spec = self._checkpoint.spec
        self._recall = 1.0
        experts = self._experts = [
            (layer, e) for layer in spec.moe_layers for e in range(spec.moe(layer).router.num_experts)
        ]
        self._expert_bytes = sum(
            self._checkpoint.expert_source(*key).assembled_nbytes(torch.bfloat16) for key in experts
        )
        self._other_bytes = self._checkpoint.params_nbytes(dtype=torch.bfloat16)
        from smoe.engine.tokenizer import load_tokenizer

        tokenizer = load_tokenizer(folder)
        assert tokenizer is not None
        self._encode = tokenizer.encode
        self._sets = prompt_sets(tokenizer.encode, size.repeats, PROMPT_TOKENS)
        self._began = time.perf_counter()

    def note(self, text: str) -> None:
        print(f"speculation {time.perf_counter() - self._began:5.0f} s  {text}", file=sys.stderr, flush=True)

    def read_along(self) -> None:
        """Acceptance and recall as far as the routers decide them: both read the same text."""
        self.note("model and 4-bit copy read the same texts")
        texts = [each[0] for each in prompt_sets(self._encode, 1, self._size.text).values()]
        checkpoint, dtype = self._checkpoint, torch.bfloat16
        params = checkpoint.params(dtype=dtype, device="cpu")
        with closing(ResidentBank(checkpoint.spec, lambda *key: checkpoint.read_expert(*key, dtype=dtype))) as bank:
            model = routes.read(checkpoint, params, bank, dtype, texts)
        with closing(make_int4_bank(checkpoint, 64)) as copy:
            draft = routes.read(checkpoint, params, copy, dtype, texts)
            share = copy.nbytes / self._expert_bytes
        widths = [w for w in routes.WIDTHS if w <= min(map(len, texts))]
        recalls = {w: routes.recall(model, draft, w) for w in widths}
        unions = {w: routes.union_size(model, w) for w in widths}
        self.result.samples["reading"] = {"recall": recalls, "union": unions, "copy_share": share}
        read = f"{sum(map(len, texts))} tokens read by both; the copy takes {100 * share:.1f} % of the experts' bytes"
        self.result.add(
            Figure(
                figure="INT4 copy: same next token as the model",
                value=100 * routes.agreement(model, draft),
                unit="%",
                bound=read,
            )
        )
        self._recall = recalls[1]
        value = recalls[9] if 9 in recalls else recalls[max(recalls)]
        self.result.add(
            Figure(
                figure="INT4 copy: experts of a window that the draft foretells",
                value=value,
                unit="recall",
                goal=f">= {GOAL_RECALL}",
                met=value >= GOAL_RECALL,
                bound="distinct experts of 9 tokens a layer; by tokens a window: "
                + ", ".join(f"{w}: {r:.3f}" for w, r in recalls.items()),
            )
        )
        listed = ", ".join(f"{w}: {u:.1f}" for w, u in unions.items())
        self.result.add(
            Figure(
                figure="experts a layer that 17 tokens ask for", value=unions[max(unions)], unit="of 64", bound=listed
            )
        )

    def choose_depth(self, percent: int) -> int:
        found = self._turns(percent, [replace(methods.adaptive(k), name=f"K = {k}") for k in self._size.depths])
        times = {k: tpot_ms(found[f"K = {k}"]) for k in self._size.depths}
        best = min(times, key=lambda k: times[k])
        listed = ", ".join(f"{k}: {ms:.0f} ms" for k, ms in times.items())
        self.result.add(Figure(figure=f"{percent} %: K of least time a token", value=best, unit="tokens", bound=listed))
        return best

    def compare(self, percent: int, depth: int) -> None:
        draft, base, look, ngram = methods.adaptive(depth), methods.DEMAND, methods.LOOKAHEAD, methods.lookup(4)
        fixed, early = methods.fixed(depth), replace(methods.adaptive(depth), draft=methods.self_draft(depth, "early"))
        early = replace(early, name="INT4 self-draft, early prefetch")
        found = self._turns(percent, [base, look, fixed, draft, early, ngram])
        where = f"{percent} % memory"
        for other in (fixed, base):
            self._ratio(where, found, draft, other, goal=True)
        for other in (look, early, ngram):
            self._ratio(where, found, other, base)
        for figure in draft_figures(f"{where}, {draft.name}", found[draft.name], depth):
            self.result.add(figure)
        equal = all(same_answers(found[each], found[base.name]) for each in found)
        self.result.add(
            Figure(
                figure=f"{where}: all methods gave the same tokens", value=float(equal), unit="", goal="1", met=equal
            )
        )

    def compare_small(self, percent: int) -> None:
        others = [methods.LOOKAHEAD, methods.lookup(2), methods.lookup(4), methods.original(8)]
        others[1] = replace(others[1], name="prompt look-up, K = 2")
        found = self._turns(percent, [methods.DEMAND, *others])
        for other in others:
            self._ratio(f"{percent} % memory", found, other, methods.DEMAND)

    def ablate(self, percent: int, depth: int) -> None:
        """One part less at a time: prefetch, then sharing of weights, then the draft itself."""
        full = methods.adaptive(depth)
        without = replace(full, name="without prefetch", draft=methods.self_draft(depth, "none"))
        apart = replace(without, name="without prefetch and sharing", unshared=True)
        late = replace(full, name="prefetch before verification", draft=methods.self_draft(depth, "late"))
        found = self._turns(percent, [full, late, without, apart, methods.DEMAND])
        for other in (late, without, apart):
            self._ratio(f"{percent} % memory", found, full, other)

    def in_memory(self, percent: int, depth: int) -> None:
        """Experts without a slot are in host memory: the link is ten times the disk's, and computing is the bound."""
        found = self._turns(percent, [methods.DEMAND, methods.adaptive(depth)], tier="host")
        self._ratio(f"{percent} % slots, the rest in host memory", found, methods.adaptive(depth), methods.DEMAND)

    def batches(self, percent: int, depth: int) -> None:
        prompts = [prompt for each in prompt_sets(self._encode, 7, PROMPT_TOKENS).values() for prompt in each]
        draft = replace(methods.adaptive(depth), name="INT4 self-draft")
        found: dict[str, dict[int, Run]] = {methods.DEMAND.name: {}, draft.name: {}}
        for method in (methods.DEMAND, draft):
            self.note(f"{percent} %, batches: {method.name}")
            with closing(self._engine(method, percent, seqs=max(self._size.batches))) as engine:
                engine.run(prompts[:1], 4)
                for batch in self._size.batches:
                    found[method.name][batch] = engine.run(prompts[:batch], max(6, self._size.tokens // 4))
        for batch in self._size.batches:
            base, own = (found[name][batch] for name in (methods.DEMAND.name, draft.name))
            bound = f"{1000 * own.tpot_s:.0f} against {1000 * base.tpot_s:.0f} ms a token, "
            bound += f"{batch / own.tpot_s:.1f} against {batch / base.tpot_s:.1f} tokens/s"
            value = base.tpot_s / own.tpot_s
            name = f"{percent} % memory, batch {batch}: {draft.name} over {methods.DEMAND.name}"
            self.result.add(Figure(figure=name, value=value, unit="x", bound=bound))
        self.result.samples["batches"] = {
            name: {str(batch): run.plain() for batch, run in runs.items()} for name, runs in found.items()
        }

    def utility(self) -> None:
        """Counts as a sensor (MoE-SpAc): costs of two cores as measured, a declared link from host memory."""
        self.note("utility: two cores, one layer")
        layer = self._checkpoint.spec.moe_layers[0]
        trace = open_trace("builtin")
        experts = self._checkpoint.read_layer(layer, dtype=torch.bfloat16)
        pools = measure_pools(experts, trace, hidden=self._checkpoint.spec.hidden)
        fetch_s = self._expert_bytes / len(self._experts) / HOST_BYTES_PER_S
        self.result.samples["pools"] = pools["samples"]
        for figure in pools["summary"]:
            self.result.add(figure)
        for name in ("builtin", "gpt-oss-20b"):
            self.note(f"utility: {name}")
            found = measure_utility(
                open_trace(name),
                sides=pools["sides"],
                fetch_s=fetch_s,
                draft_s=DRAFT_S,
                draft_recall=self._recall,
                name=name,
            )
            self.result.samples[f"utility, {name}"] = {"of": found["of"], **found["samples"]}
            for figure in found["summary"]:
                self.result.add(replace(figure, figure=f"{name}: {figure.figure}"))

    def _turns(self, percent: int, compared: Sequence[Method], tier: str = "disk") -> dict[str, dict[str, list[Run]]]:
        """Every method on every prompt, in turn: neighbours in time are paired. By method and set."""
        found: dict[str, dict[str, list[Run]]] = {each.name: {key: [] for key in self._sets} for each in compared}
        self.note(f"{percent} % ({tier}): loading {len(compared)} engines")
        with ExitStack() as stack:
            engines = {each.name: stack.enter_context(closing(self._engine(each, percent, tier))) for each in compared}
            for name, engine in engines.items():
                engine.run([next(iter(self._sets.values()))[0]], 8)
                self.note(f"{percent} %: {name} is warm")
            for number in range(self._size.repeats):
                for key, prompts in self._sets.items():
                    for name, engine in _in_turn(engines.items(), number):
                        found[name][key].append(engine.run([prompts[number]], self._size.tokens))
        raw = {name: {key: [r.plain() for r in runs] for key, runs in sets.items()} for name, sets in found.items()}
        self.result.samples.setdefault(f"{percent} %, {tier}", []).append(raw)  # type: ignore[attr-defined]
        return found

    def _engine(self, method: Method, percent: int, tier: str = "disk", seqs: int = 1) -> Engine:
        budget = self._expert_bytes * percent // 100
        return Engine(method.config(self._folder, budget, self._other_bytes, tier=tier, seqs=seqs))

    def _ratio(
        self,
        where: str,
        found: Mapping[str, Mapping[str, Sequence[Run]]],
        one: Method,
        base: Method,
        goal: bool = False,
    ) -> None:
        runs, others = found[one.name], found[base.name]
        self.result.add(ratio_figure(where, runs, others, one.name, base.name, goal=goal))


def _in_turn(engines: Iterable[tuple[str, Engine]], number: int) -> list[tuple[str, Engine]]:
    listed = list(engines)
    return listed if number % 2 == 0 else listed[::-1]
