"""When a generation ends: end of sequence, a stop string, or its length."""

from __future__ import annotations

from collections.abc import Sequence

from mempo.rollout.interfaces import Generation, SamplingParams
from mempo.rollout.tokenizer import Tokenizer
from mempo.rollout.trajectory import GenerationStop


class StopWatcher:
    """Collects one generation and says when it ends: end of sequence, stop string, or length."""

    def __init__(self, tokenizer: Tokenizer, sampling: SamplingParams) -> None:
        self._tokenizer = tokenizer
        self._sampling = sampling
        self._last_chars = {stop[-1] for stop in sampling.stop}
        self._reach = max((len(stop) for stop in sampling.stop), default=0) + 1
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self.stop: GenerationStop | None = None

    def add(self, token: int, logprob: float) -> None:
        """One more sampled token; ignored once the generation has ended."""
        if self.stop is not None:
            return
        self._ids.append(token)
        self._logprobs.append(logprob)
        if token in self._tokenizer.eos_ids:
            self.stop = GenerationStop.EOS
        elif self._ends_stop_string(token):
            self.stop = GenerationStop.STOP_STRING
        elif len(self._ids) >= self._sampling.max_new_tokens:
            self.stop = GenerationStop.LENGTH

    def generation(self) -> Generation:
        return Generation(tuple(self._ids), tuple(self._logprobs), self.stop or GenerationStop.LENGTH)

    def _ends_stop_string(self, token: int) -> bool:
        """A stop string may straddle tokens: its last character must be in this one, its first at most `reach` back.

        Every token but one inside a character adds a character at least, so the last `4 * reach` tokens hold it.
        """
        piece = self._tokenizer.piece(token)
        if "\ufffd" not in piece and not self._last_chars.intersection(piece):
            return False
        tail = self._tokenizer.decode(self._ids[-4 * self._reach :])
        if not any(stop in tail for stop in self._sampling.stop):
            return False
        self._drop_beyond()
        return True

    def _drop_beyond(self) -> None:
        """Cut tokens that begin after the first stop string; the one that straddles its end stays whole."""
        decoded = self._tokenizer.decode_spans(self._ids)
        ends = [decoded.text.find(s) + len(s) for s in self._sampling.stop if s in decoded.text]
        if ends:
            kept = decoded.tokens_of(0, min(ends))
            length = kept[1] if kept else len(self._ids)
            del self._ids[length:], self._logprobs[length:]


def watched(
    tokenizer: Tokenizer, sampling: SamplingParams, ids: Sequence[int], logprobs: Sequence[float]
) -> StopWatcher:
    """Our own stop rule over what another engine has generated `[tokens]`, which may be some tokens more."""
    watcher = StopWatcher(tokenizer, sampling)
    for token, logprob in zip(ids, logprobs, strict=True):
        watcher.add(token, logprob)
    return watcher
