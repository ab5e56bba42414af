"""How much of everything is measured, and what that should take on two idle cores: the whole in half an hour."""

from dataclasses import dataclass

LOAD_S, RUN_S = 4.0, 1.5  # an engine of 60 % of the experts; a prompt, and experts put back before it
TOKEN_S = {60: 0.09, 50: 0.11, 40: 0.14, 25: 0.18}  # of demand paging, the slowest that is compared in full
METHODS, SMALL_METHODS, VARIATIONS = 4, 5, 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """`percents` of the experts' bytes, at each of which `repeats` prompts of every set are answered by `tokens`, which
    windows of 64 and of 32 drafted tokens fill. `small` is where an INT4 copy does not fit. `depths` are tried on one
    prompt at each percent. `text` tokens of each set are read for agreement. `variations` prompts try parts of a draft
    and mistakes, `noises` being shares of its choices. `declared` windows of a trace are simulated for utility.
    """

    percents: tuple[int, ...] = (60, 50, 40)
    repeats: tuple[int, ...] = (2, 1, 1)
    sets: int = 5
    tokens: int = 66
    depths: tuple[int, ...] = (16, 32, 64)
    small: int = 25
    small_tokens: int = 26
    variations: int = 2
    noises: tuple[float, ...] = (0.25, 0.5, 0.75)
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    batch_tokens: int = 18
    text: int = 170
    declared: int = 200

    def expected_s(self) -> dict[str, float]:
        """By part."""
        compared = sum(
            METHODS * (LOAD_S + self.sets * count * self._run_s(self.tokens, percent))
            for percent, count in zip(self.percents, self.repeats, strict=True)
        )
        tried = 2 * len(self.percents) * (len(self.depths) > 1)
        most = max(self.percents)
        return {
            "reading": 20 + 0.15 * self.text,
            "depths": tried * (LOAD_S + (1 + len(self.depths)) * self._run_s(self.tokens, most)),
            "memory": compared,
            "small": SMALL_METHODS * (LOAD_S + self.sets * self._run_s(self.small_tokens, self.small)),
            "parts": 2 * LOAD_S + VARIATIONS * self.variations * self._run_s(self.tokens, most),
            "host": 2 * (2 * LOAD_S + self.variations * self._run_s(self.tokens, most)),
            "batches": 2 * (LOAD_S + sum((self.batch_tokens + 4) * (0.06 + 0.03 * b) for b in self.batches)),
            "utility": 20 + 0.3 * self.declared,
        }

    @staticmethod
    def _run_s(tokens: int, percent: int) -> float:
        return RUN_S + tokens * TOKEN_S[percent]


FULL = Size()
QUICK = Size(
    percents=(60,),
    repeats=(1,),
    sets=2,
    tokens=34,
    depths=(16,),
    small_tokens=10,
    variations=1,
    noises=(0.75,),
    batches=(1, 4),
    batch_tokens=10,
    text=68,
    declared=20,
)
