"""Figures from runs. Times are paired: the same prompts, one method after the other."""

from collections.abc import Mapping, Sequence
from statistics import mean

from smoe.bench.result import Figure
from smoe.bench.speculation.chance import chance_of_keeping
from smoe.bench.speculation.measure import Run

Runs = Mapping[str, Sequence[Run]]
"""By prompt set; those of two methods in the same order."""
GOAL_SPEED, GOAL_HITS, GOAL_HIDDEN, GOAL_RECALL = 1.5, 0.95, 0.55, 0.93


def tpot_ms(runs: Runs) -> float:
    return 1000 * mean(run.tpot_s for each in runs.values() for run in each)


def ratio_figure(where: str, runs: Runs, base: Runs, name: str, base_name: str, *, goal: bool) -> Figure:
    """Mean over prompt sets of base time over time, and the best set."""
    by_set = {key: mean(r.tpot_s for r in base[key]) / mean(r.tpot_s for r in runs[key]) for key in runs}
    value, best = mean(by_set.values()), max(by_set, key=lambda key: by_set[key])
    sets = ", ".join(f"{key} {ratio:.2f}" for key, ratio in by_set.items())
    moved, before = (_mb_per_token(each) for each in (runs, base))
    return Figure(
        figure=f"{where}: {name} over {base_name}",
        value=value,
        unit="x",
        goal=f">= {GOAL_SPEED} x" if goal else None,
        met=value >= GOAL_SPEED if goal else None,
        bound=f"{tpot_ms(runs):.0f} against {tpot_ms(base):.0f} ms a token; best {best}; {sets}; "
        f"{moved:.0f} against {before:.0f} MB moved a token",
    )


def draft_figures(where: str, runs: Runs, depth: int) -> list[Figure]:
    every = [run for each in runs.values() for run in each]
    drafted, accepted = sum(r.draft.drafted for r in every), sum(r.draft.accepted for r in every)
    windows = max(1, sum(r.draft.windows for r in every))
    hits, hidden = mean(r.hit_rate for r in every), mean(r.hidden_share for r in every)
    draft_s, verify_s = sum(r.draft.draft_s for r in every), sum(r.draft.verify_s for r in every)
    wait_s = sum(r.experts.wait_s for r in every)
    made = f"K = {depth}, {drafted / windows:.1f} drafted a window, {1 + accepted / windows:.2f} tokens of it"
    spent = (
        f"{made}; a window: {1000 * draft_s / windows:.0f} ms drafting, {1000 * verify_s / windows:.0f} ms verifying, "
    )
    spent += f"{1000 * wait_s / windows:.0f} ms of it waiting"
    wasted, begun = sum(r.experts.wasted for r in every), max(1, sum(r.experts.prefetched for r in every))
    return [
        Figure(
            figure=f"{where}: drafted tokens kept",
            value=100 * accepted / max(1, drafted),
            unit="%",
            bound=spent,
        ),
        _expected_run(where, drafted, accepted, windows),
        Figure(
            figure=f"{where}: experts resident when verification asks",
            value=100 * hits,
            unit="%",
            goal=f">= {100 * GOAL_HITS:.0f} %",
            met=hits >= GOAL_HITS,
            bound=f"{100 * wasted / begun:.0f} % of prefetches wasted",
        ),
        Figure(
            figure=f"{where}: transfer time hidden",
            value=100 * hidden,
            unit="%",
            goal=f">= {100 * GOAL_HIDDEN:.0f} %",
            met=hidden >= GOAL_HIDDEN,
            bound="1 - time that passes waited / time in which something was under way, which is "
            f"{100 * sum(r.experts.transfer_s for r in every) / sum(r.decode_s for r in every):.0f} % of all time",
        ),
    ]


def _expected_run(where: str, drafted: int, accepted: int, windows: int) -> Figure:
    """p / (1 - p) of an endless draft, p being the chance that fits what the windows kept."""
    chance = chance_of_keeping(drafted=drafted, kept=accepted, windows=windows)
    bound = f"p = {chance:.4f}: {accepted} of {drafted} tokens kept in {windows} windows"
    value = chance / (1 - chance) if chance < 1 else None
    return Figure(figure=f"{where}: expected run of kept tokens", value=value, unit="tokens", bound=bound)


def same_answers(runs: Runs, base: Runs) -> bool:
    return all(a.answers == b.answers for key in runs for a, b in zip(runs[key], base[key], strict=True))


def _mb_per_token(runs: Runs) -> float:
    every = [run for each in runs.values() for run in each]
    return sum(run.experts.bytes_moved for run in every) / sum(run.tokens for run in every) / 1e6
