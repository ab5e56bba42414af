"""One request being answered: from sampled tokens to the deltas that its client sees."""

from collections.abc import Sequence as SequenceOf

from smoe.core.request import Delta, FinishReason, Usage
from smoe.core.step import SampledToken, Substituted
from smoe.engine.detokenize import Detokenizer
from smoe.engine.stops import StopMatcher
from smoe.sched.scheduler import Progress
from smoe.sched.sequence import Sequence


class Answer:
    """Turns the progress of `sequence` into deltas. Without `detokenizer` every text is empty."""

    __slots__ = ("_detokenizer", "_num_tokens", "_stops", "_substituted", "sequence")

    def __init__(self, sequence: Sequence, detokenizer: Detokenizer | None) -> None:
        self.sequence = sequence
        self._detokenizer = detokenizer
        self._stops = StopMatcher(sequence.params.stop)
        self._substituted = Substituted(0, 0.0)
        self._num_tokens = 0

    def note_substituted(self, more: Substituted) -> None:
        """Of one step; the deltas from here on have it in their totals."""
        so_far = self._substituted
        self._substituted = Substituted(so_far.slots + more.slots, so_far.mass + more.mass)

    def delta(self, progress: Progress) -> Delta:
        """The next delta; it ends the request also when its text reaches a stop string. Tokens after that are not of
        the answer.

        A token that ends the answer (EOS, stop token) is among `token_ids` and not in the text.
        """
        reason = progress.finish_reason
        texts: list[str] = []
        taken: list[SampledToken] = []
        for token in progress.tokens:
            if token.token_id is None:
                return self._last(reason or "error", "".join(texts), taken, error=token.error)
            taken.append(token)
            self._num_tokens += 1
            if self._detokenizer is None or (reason == "stop" and len(taken) == len(progress.tokens)):
                continue
            text, matched = self._stops.push(self._detokenizer.push(token.token_id))
            texts.append(text)
            if matched is not None:
                return self._delta("".join(texts), taken, "stop", matched)
        if reason is None:
            return self._delta("".join(texts), taken)
        return self._last(reason, "".join(texts), taken, stop_reason=progress.stop_reason)

    def abort(self) -> Delta:
        return self._last("abort")

    @property
    def _is_holding(self) -> bool:
        return self._detokenizer is not None and (self._stops.is_holding or self._detokenizer.is_holding)

    def _last(
        self,
        reason: FinishReason,
        text: str = "",
        tokens: SequenceOf[SampledToken] = (),
        *,
        stop_reason: str | int | None = None,
        error: str | None = None,
    ) -> Delta:
        """A delta that ends the request, with all text that was held back up to a stop string completed by it."""
        if self._detokenizer is not None:
            shown, matched = self._stops.push(self._detokenizer.flush())
            text += shown
            if matched is None:
                text += self._stops.flush()
            else:
                reason, stop_reason = "stop", matched
        return self._delta(text, tokens, reason, stop_reason, error)

    def _delta(
        self,
        text: str,
        tokens: SequenceOf[SampledToken],
        reason: FinishReason | None = None,
        stop_reason: str | int | None = None,
        error: str | None = None,
    ) -> Delta:
        return Delta(
            request_id=self.sequence.request_id,
            text=text,
            token_ids=tuple([token.token_id for token in tokens if token.token_id is not None]),
            logprobs=tuple([token.logprob for token in tokens if token.logprob is not None]),
            held_back=reason is None and self._is_holding,
            finish_reason=reason,
            stop_reason=stop_reason,
            usage=None if reason is None else Usage(self.sequence.num_prompt, self._num_tokens),
            error=error,
            substituted_slots=self._substituted.slots,
            substituted_mass=self._substituted.mass,
        )
