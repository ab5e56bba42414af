"""One request being answered: from sampled tokens to the deltas that its client sees."""

from smoe.core.request import Delta, FinishReason, TokenLogprob, Usage
from smoe.core.step import Substituted
from smoe.engine.detokenize import Detokenizer
from smoe.engine.stops import StopMatcher
from smoe.sched.scheduler import Progress
from smoe.sched.sequence import Sequence


class Answer:
    """Turns the progress of `sequence` into deltas. Without `detokenizer` every text is empty."""

    __slots__ = ("_detokenizer", "_stops", "_substituted", "sequence")

    def __init__(self, sequence: Sequence, detokenizer: Detokenizer | None) -> None:
        self.sequence = sequence
        self._detokenizer = detokenizer
        self._stops = StopMatcher(sequence.params.stop)
        self._substituted = Substituted(0, 0.0)

    def note_substituted(self, more: Substituted) -> None:
        """Of one step; the deltas from here on have it in their totals."""
        so_far = self._substituted
        self._substituted = Substituted(so_far.slots + more.slots, so_far.mass + more.mass)

    def delta(self, progress: Progress) -> Delta:
        """The next delta; it ends the request also when its text reaches a stop string.

        A token that ends the answer (EOS, stop token) is among `token_ids` and not in the text.
        """
        token, reason = progress.token, progress.finish_reason
        if token.token_id is None:
            return self._last(reason or "error", error=token.error)
        text, matched = "", None
        if self._detokenizer is not None and reason != "stop":
            text, matched = self._stops.push(self._detokenizer.push(token.token_id))
        logprobs = () if token.logprob is None else (token.logprob,)
        if matched is not None:
            usage = self._usage()
            return Delta(
                request_id=self.sequence.request_id,
                text=text,
                token_ids=(token.token_id,),
                logprobs=logprobs,
                finish_reason="stop",
                stop_reason=matched,
                usage=usage,
                substituted_slots=self._substituted.slots,
                substituted_mass=self._substituted.mass,
            )
        if reason is None:
            return Delta(
                request_id=self.sequence.request_id,
                text=text,
                token_ids=(token.token_id,),
                logprobs=logprobs,
                substituted_slots=self._substituted.slots,
                substituted_mass=self._substituted.mass,
            )
        return self._last(
            reason, text=text, token_ids=(token.token_id,), logprobs=logprobs, stop_reason=progress.stop_reason
        )

    def abort(self) -> Delta:
        return self._last("abort")

    def _last(
        self,
        reason: FinishReason,
        *,
        text: str = "",
        token_ids: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprob, ...] = (),
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
        return Delta(
            request_id=self.sequence.request_id,
            text=text,
            token_ids=token_ids,
            logprobs=logprobs,
            finish_reason=reason,
            stop_reason=stop_reason,
            usage=self._usage(),
            error=error,
            substituted_slots=self._substituted.slots,
            substituted_mass=self._substituted.mass,
        )

    def _usage(self) -> Usage:
        return Usage(self.sequence.num_prompt, self.sequence.num_generated)
