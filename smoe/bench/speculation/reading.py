"""Acceptance, recall and unions as far as the routers decide them: the model and its 4-bit copy read the same texts."""

from contextlib import closing

from smoe.bench.result import Figure
from smoe.bench.speculation import routes
from smoe.bench.speculation.costs import measure_costs
from smoe.bench.speculation.report import GOAL_RECALL
from smoe.bench.speculation.setting import DTYPE, Setting
from smoe.core.draft import DEFAULT_GROUP_SIZE
from smoe.models.bank import ResidentBank
from smoe.offload.draft_bank import make_int4_bank

FORETOLD_WIDTH = 9


def read_along(setting: Setting) -> dict[int, float]:
    """Sets the setting's `costs` and `recall`. Returns unions: distinct experts a layer by tokens."""
    setting.note("model and 4-bit copy read the same texts")
    texts = [each[0] for each in setting.prompts(1, setting.size.text).values()]
    checkpoint = setting.checkpoint
    params = checkpoint.params(dtype=DTYPE, device="cpu")
    with closing(ResidentBank(checkpoint.spec, lambda *key: checkpoint.read_expert(*key, dtype=DTYPE))) as bank:
        model = routes.read(checkpoint, params, bank, DTYPE, texts)
        setting.costs = measure_costs(checkpoint, params, bank, DTYPE, texts[0])
    with closing(make_int4_bank(checkpoint, DEFAULT_GROUP_SIZE)) as copy:
        draft = routes.read(checkpoint, params, copy, DTYPE, texts)
        share = copy.nbytes / setting.all_bytes
    widths = [w for w in routes.WIDTHS if w <= min(map(len, texts))]
    recalls = {w: routes.recall(model, draft, w) for w in widths}
    unions = {w: routes.union_size(model, w) for w in widths}
    setting.recall = recalls[1]
    costs = setting.costs
    setting.keep("reading", {"recall": recalls, "union": unions, "copy_share": share})
    setting.keep("costs", {"dense_s": costs.dense_s, "row_s": costs.row_s, "further_s": costs.further_s})
    read = f"{sum(map(len, texts))} tokens read by both; the copy takes {100 * share:.1f} % of the experts' bytes"
    agreement = routes.agreement(model, draft)
    run = agreement / max(1e-9, 1 - agreement)
    setting.add(
        Figure(figure="INT4 copy: same next token as the model", value=100 * agreement, unit="%", bound=read),
        Figure(figure="INT4 copy: expected run p / (1 - p), teacher forced", value=run, unit="tokens"),
        Figure(
            figure="INT4 copy: experts of a window that the draft foretells",
            value=recalls[FORETOLD_WIDTH],
            unit="recall",
            goal=f">= {GOAL_RECALL}",
            met=recalls[FORETOLD_WIDTH] >= GOAL_RECALL,
            bound=f"distinct experts of {FORETOLD_WIDTH} tokens a layer; by tokens a window: "
            + ", ".join(f"{w}: {r:.3f}" for w, r in recalls.items()),
        ),
        *(_union(setting, width, union) for width, union in unions.items()),
    )
    return unions


def uniform_union(num_experts: int, top_k: int, width: int) -> float:
    """Distinct experts of `width` tokens that choose independently and evenly."""
    return num_experts * (1 - (1 - top_k / num_experts) ** width)


def _union(setting: Setting, width: int, union: float) -> Figure:
    top_k = setting.spec.moe(setting.spec.moe_layers[0]).router.top_k
    even = uniform_union(setting.num_experts, top_k, width)
    name = f"experts a layer that a window of K = {width - 1} asks for"
    bound = f"{width} tokens; {even:.1f} if they chose independently and evenly"
    return Figure(figure=name, value=union, unit=f"of {setting.num_experts}", bound=bound)
