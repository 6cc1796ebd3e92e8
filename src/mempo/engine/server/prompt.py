"""A prompt of token ids as text, for servers that take no ids, and as messages, for those that only chat.

Text is exact outside special tokens. A server reads every special token it finds in a text, so a passage that spells
one out (`<|im_end|>`) must not: there, a zero-width space is put behind its first letter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from mempo.rollout.tokenizer import Tokenizer

BREAK = "\u200b"


class PromptText:
    """Prompts of one tokenizer as text.

    `keep_special` False leaves out what begins and ends sequences, for servers whose own special tokens are not known.
    """

    def __init__(self, tokenizer: Tokenizer, keep_special: bool) -> None:
        self._tokenizer = tokenizer
        bos_id = tokenizer.hf.bos_token_id
        self._dropped = frozenset() if keep_special else frozenset({*tokenizer.eos_ids, bos_id} - {None})
        # Such a tokenizer puts the token in front of every text, on the server as well.
        adds_bos = bos_id is not None and tokenizer.hf("").input_ids[:1] == [bos_id]
        self._bos_id = bos_id if adds_bos else None
        special = (tokenizer.decode([i]) for i in {*tokenizer.added_ids, *tokenizer.eos_ids})
        texts = sorted({text.strip() for text in special} - {""}, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, texts))) if texts else None

    def text(self, ids: Sequence[int]) -> str:
        """The text that a server turns into these ids again, or nearly so."""
        if ids and ids[0] == self._bos_id:
            ids = ids[1:]
        if self._dropped:
            ids = [i for i in ids if i not in self._dropped]
        whole = self._tokenizer.decode(ids)
        if self._special is None or not self._special.search(whole):
            return whole
        return self._guarded(ids, whole)

    def messages(self, ids: Sequence[int], system: str) -> list[dict[str, str]]:
        """The system prompt, where the prompt begins with it, and the rest in one message of the user: a context that
        was built anew is no conversation."""
        text = self.text(ids)
        head = f"{system}\n\n"
        if not system or not text.startswith(head):
            return [{"role": "user", "content": text.strip("\n")}]
        rest = text[len(head) :].strip("\n")
        return [{"role": "system", "content": system}, {"role": "user", "content": rest}]

    def _guarded(self, ids: Sequence[int], whole: str) -> str:
        """Special tokens that are ids of their own stay; those that other tokens spell are broken up."""
        pattern = self._special
        assert pattern is not None
        added = self._tokenizer.added_ids | self._tokenizer.eos_ids
        parts, position, tokens = [], 0, 0
        for is_added, run in groupby(ids, key=lambda i: i in added):
            tokens += len(list(run))
            end = len(self._tokenizer.decode(ids[:tokens])) if tokens < len(ids) else len(whole)
            part, position = whole[position:end], end
            parts.append(part if is_added else pattern.sub(_broken, part))
        return "".join(parts)


def _broken(match: re.Match[str]) -> str:
    return match.group()[0] + BREAK + match.group()[1:]
