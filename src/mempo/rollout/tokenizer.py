"""Token ids ↔ characters, and the one door through which outside text becomes ids.

`Tokenizer` wraps a Hugging Face fast tokenizer. It keeps two promises:

* text of sampled ids is derived, with the characters each token owns (`decode_spans`); ids are never made from it;
* outside text (questions, passages, gold answers) never yields an added-vocabulary id, special or not
  (`encode_untrusted`), whatever it contains.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import Any

from tokenizers import Tokenizer as HfTokenizer
from tokenizers import decoders

from mempo.errors import UserError
from mempo.rollout.token_bytes import BROKEN, byte_level_starts, fallback_starts
from mempo.rollout.trajectory import Span

_KEPT_TEXTS, _KEPT_CHARS = 2048, 4096
"""Passages come again: to other rollouts of a question, other agents, later turns. A few megabytes of them are kept."""


@dataclass(frozen=True)
class Encoded:
    """Ids with the characters `[start, end)` of the encoded text that each one covers."""

    ids: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Decoded:
    """Text of ids. `starts[i]` is the first character of token i, `starts[-1] == len(text)`.

    A character that several tokens share (bytes of one letter) counts as the start of all of them but the first, which
    may begin before it. `edges` are the characters before which a token ends and the next begins: where a letter is
    shared there is none.
    """

    text: str
    starts: tuple[int, ...]
    edges: frozenset[int]

    def tokens_of(self, start_char: int, end_char: int) -> Span | None:
        """The tokens whose first character lies in `[start_char, end_char)`; None when there are none."""
        starts = self.starts
        most = len(starts) - 1
        first, last = bisect_left(starts, start_char, hi=most), bisect_left(starts, end_char, hi=most)
        return (first, last) if first < last else None

    def edge_from(self, char: int) -> int | None:
        """The first edge at or behind a character."""
        return next((edge for edge in range(char, len(self.text) + 1) if edge in self.edges), None)

    def edge_to(self, char: int) -> int | None:
        """The last edge at or before a character."""
        return next((edge for edge in range(char, -1, -1) if edge in self.edges), None)


class Tokenizer:
    """The tokenizer of one policy. `more_eos_ids`: tokens besides its own end-of-sequence token that end a reply.

    Raises:
        UserError: the tokenizer has no fast backend, or no end-of-sequence token.
    """

    def __init__(self, tokenizer: Any, more_eos_ids: Iterable[int] = ()) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, HfTokenizer):
            raise UserError(
                f"{type(tokenizer).__name__} has no fast backend, so character offsets are not known; "
                "load the model with a fast tokenizer (a tokenizer.json)"
            )
        if tokenizer.eos_token_id is None:
            raise UserError(
                "the tokenizer has no end-of-sequence token; set eos_token in its tokenizer_config.json "
                "(generation could never end by itself)"
            )
        self.hf = tokenizer
        self.eos_id: int = int(tokenizer.eos_token_id)
        self.eos_ids = frozenset({self.eos_id, *more_eos_ids})
        # A copy: a tokenizer saved after training often brings truncation and padding along, or is given them later.
        self._trusted = HfTokenizer.from_str(backend.to_str())
        self._trusted.no_truncation()
        self._trusted.no_padding()
        added = backend.get_added_tokens_decoder()
        self.added_ids = frozenset(added)
        self._added_texts = {i: token.content for i, token in added.items()}
        self._unknown_id: int | None = tokenizer.unk_token_id
        self._outside = _without_added_tokens(backend)
        # The bytes of such tokens follow one another: where each is whole letters, so is their text.
        self._joins = isinstance(backend.decoder, decoders.ByteLevel)
        self._anchor: tuple[int, str] | None = None
        self._pieces: dict[int, tuple[str, str]] = {}
        self._outside_ids: dict[str, tuple[int, ...]] = {}

    @cached_property
    def size(self) -> int:
        """One more than the largest id; vocabularies may have holes."""
        return max(self._trusted.get_vocab(with_added_tokens=True).values()) + 1

    # --- text to ids -----------------------------------------------------------------------------------------------

    def encode_trusted(self, text: str) -> tuple[int, ...]:
        """Ids of text that this library wrote (tags, templates). No BOS or EOS is added."""
        return tuple(self._trusted.encode(text, add_special_tokens=False).ids)

    def encode_untrusted(self, text: str) -> tuple[int, ...]:
        """Ids of text from outside: no id of the added vocabulary, whatever the text says. A letter that the vocabulary
        lacks is the unknown token, where the tokenizer has one."""
        if (known := self._outside_ids.get(text)) is not None:
            return known
        ids = tuple(self._outside.encode(_storable(text), add_special_tokens=False).ids)
        if not self.added_ids.isdisjoint(ids):
            ids = self._encode_outside(text).ids
        if len(text) <= _KEPT_CHARS:
            if len(self._outside_ids) == _KEPT_TEXTS:
                self._outside_ids.clear()
            self._outside_ids[text] = ids
        return ids

    def mixed_ids(self, pieces: Sequence[tuple[str, bool]]) -> tuple[int, ...]:
        """The ids of `encode_mixed`; without their places, which cost time to fetch."""
        whole = _storable("".join([text for text, _ in pieces]))
        ids = tuple(self._trusted.encode(whole, add_special_tokens=False).ids)
        return ids if self.added_ids.isdisjoint(ids) else self.encode_mixed(pieces).ids

    def encode_mixed(self, pieces: Sequence[tuple[str, bool]]) -> Encoded:
        """Encode `(text, trusted)` pieces as one string where that is safe, so that merges across their edges happen as
        in running text. When an added token would come out of (or reach into) an outside piece, they are encoded apart.
        """
        whole = "".join([text for text, _ in pieces])
        encoding = self._trusted.encode(_storable(whole), add_special_tokens=False)
        together = Encoded(tuple(encoding.ids), tuple(encoding.offsets))
        if self.added_ids.isdisjoint(together.ids):
            return together
        edges, position = [], 0
        for text, trusted in pieces:
            edges.append((position, position + len(text), trusted))
            position += len(text)
        unsafe = any(
            self._is_added(i, whole[a:b])
            and any(not trusted and a < end and start < b for start, end, trusted in edges)
            for i, (a, b) in zip(together.ids, together.offsets, strict=True)
        )
        if not unsafe:
            return together
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        for (text, trusted), (start, _, _) in zip(pieces, edges, strict=True):
            if trusted:
                part = self._trusted.encode(text, add_special_tokens=False)
                found, spans = tuple(part.ids), tuple(part.offsets)
            else:
                encoded = self._encode_outside(text)
                found, spans = encoded.ids, encoded.offsets
            ids += found
            offsets += [(a + start, b + start) for a, b in spans]
        return Encoded(tuple(ids), tuple(offsets))

    def _encode_outside(self, text: str) -> Encoded:
        text = _storable(text)
        encoding = self._outside.encode(text, add_special_tokens=False)
        whole = Encoded(tuple(encoding.ids), tuple(encoding.offsets))
        found = zip(whole.ids, whole.offsets, strict=True)
        if not any(self._is_added(i, text[start:end]) for i, (start, end) in found):
            return whole
        # The model itself knows the token (a word-level or unigram vocabulary that holds it): spell that piece out.
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        for i, (start, end) in zip(whole.ids, whole.offsets, strict=True):
            if not self._is_added(i, text[start:end]):
                ids.append(i)
                offsets.append((start, end))
                continue
            for k in range(start, end):
                for j in self._outside.encode(text[k], add_special_tokens=False).ids:
                    if not self._is_added(j, text[k]):
                        ids.append(j)
                        offsets.append((k, k + 1))
        return Encoded(tuple(ids), tuple(offsets))

    def _is_added(self, token_id: int, text: str) -> bool:
        """Whether `text` came out as a token of the added vocabulary. The unknown token that stands for a letter the
        vocabulary lacks is none, though it is listed there; spelt out in the text it is."""
        if token_id == self._unknown_id and self._added_texts.get(token_id) not in (None, text.strip()):
            return False
        return token_id in self.added_ids

    # --- ids to text -----------------------------------------------------------------------------------------------

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens shown, nothing tidied."""
        if self._joins:
            known = self._pieces
            text = "".join([(known.get(i) or self._piece(i))[0] for i in ids])
            if BROKEN not in text:
                return text
        return self._decode(ids)

    def _decode(self, ids: Sequence[int]) -> str:
        return self._trusted.decode(list(ids), skip_special_tokens=False)

    def piece(self, token_id: int, first: bool = False) -> str:
        """What a token adds to a running text; `first`: at its very beginning (some tokenizers strip a space there).

        Bytes that are no whole character come out as U+FFFD: good for a quick look, never for exact offsets.
        """
        return (self._pieces.get(token_id) or self._piece(token_id))[0 if first else 1]

    def part_ids(self, part: str) -> tuple[int, ...] | None:
        """Ids that read as this part of a running text, for the few characters at an edge where a token was cut in two.
        None where the vocabulary has none."""
        letters = [self._trusted.token_to_id(letter) for letter in part]
        for ids in (self.encode_untrusted(part), letters):
            known = [i for i in ids if i is not None and i not in self.added_ids]
            if len(known) == len(ids) and "".join([self.piece(i) for i in known]) == part:
                return tuple(known)
        return None

    def _piece(self, token_id: int) -> tuple[str, str]:
        """At the very beginning, and behind another token."""
        if self._anchor is None:
            # Small vocabularies may not know the letter at all.
            ordinary = (i for i in range(self.size) if i not in self.added_ids)
            anchor = next(chain(self.encode_untrusted("a"), ordinary), self.eos_id)
            self._anchor = (anchor, self._decode([anchor]))
        anchor_id, anchor_text = self._anchor
        both = self._decode([anchor_id, token_id])
        self._pieces[token_id] = (self._decode([token_id]), both[len(anchor_text) :])
        return self._pieces[token_id]

    def decode_spans(self, ids: Sequence[int]) -> Decoded:
        """Text of sampled ids and the character each token starts at."""
        text = self.decode(ids)
        known = self._pieces
        pieces = [(known.get(i) or self._piece(i))[1] for i in ids]
        pieces[:1] = [self.piece(i, first=True) for i in ids[:1]]
        if "".join(pieces) == text and BROKEN not in text:
            starts = tuple(accumulate(map(len, pieces), initial=0))
            return Decoded(text, starts, frozenset(starts))
        return self._decoded_by_bytes(ids, text) or self._decoded_by_prefixes(ids, text)

    def _decoded_by_bytes(self, ids: Sequence[int], text: str) -> Decoded | None:
        """Where letters are broken or shared among tokens; None where the tokens' bytes do not explain the text."""
        tokens = [self._trusted.id_to_token(i) or "" for i in ids]
        if self._joins:
            found, starts, edges = byte_level_starts(tokens)
        else:
            found, starts, edges = fallback_starts(tokens, lambda k: self.piece(ids[k], first=not k))
        return Decoded(text, (*starts, len(text)), frozenset(edges)) if found == text else None

    def _decoded_by_prefixes(self, ids: Sequence[int], text: str) -> Decoded:
        """Exact for any tokenizer, and quadratic: decode growing prefixes, see how far each agrees with the whole."""
        starts, edges = [0], {0, len(text)}
        for n in range(1, len(ids)):
            prefix = self.decode(ids[:n])
            whole = text.startswith(prefix)
            starts.append(max(starts[-1], len(prefix) if whole else common_prefix(prefix, text)))
            if whole:
                edges.add(len(prefix))
        starts.append(len(text))
        return Decoded(text, tuple(starts), frozenset(edges))


def common_prefix(a: Sequence[Any], b: Sequence[Any]) -> int:
    """How many items both begin with, of two strings or of two tuples. Whole slices are compared: item by item, Python
    would take as long over a history of thousands of tokens as over a turn of the model."""
    least, most = 0, min(len(a), len(b))
    while least < most:
        middle = (least + most + 1) // 2
        if a[least:middle] == b[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least


def _storable(text: str) -> str:
    """Lone surrogates cannot be encoded as UTF-8; each becomes one replacement character, so offsets keep."""
    if text.isascii():
        return text
    return "".join("�" if "\ud800" <= c <= "\udfff" else c for c in text)


def _without_added_tokens(backend: HfTokenizer) -> HfTokenizer:
    """The same tokenizer without added vocabulary, template or padding."""
    state = json.loads(backend.to_str())
    state["added_tokens"] = []
    state["post_processor"] = None
    state["padding"] = None
    state["truncation"] = None
    return HfTokenizer.from_str(json.dumps(state))
