from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo.config.rewards import ProbeSettings
from mempo.rewards import NoSignal, Probe, build_probe
from mempo.rewards.probe import probe_or_reason
from mempo.rollout.question import Gold
from mempo.rollout.tokenizer import Encoded, Tokenizer
from tests.rewards.build import question
from tests.tiny import FAMILIES, make_tokenizer

TWO: Gold = (("Paris", "Paname"), ("Yen",))
PLAIN = ProbeSettings()
HEAD = f"\n<think>\n{PLAIN.thought}\n</think>\n<answer>\n"


class Chunks:
    """A tokenizer with edges where the test wants them: chunks of `width` characters, counted from the start."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.pieces: list[tuple[str, bool]] = []

    def encode_mixed(self, pieces: Sequence[tuple[str, bool]]) -> Encoded:
        self.pieces = list(pieces)
        n = sum(len(text) for text, _ in pieces)
        edges = [(a, min(a + self.width, n)) for a in range(0, n, self.width)]
        return Encoded(tuple(range(len(edges))), tuple(edges))

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.pieces)


def gold_text(gold: Gold | None, settings: ProbeSettings = PLAIN, target: str | None = None) -> str:
    tokenizer = Chunks(1)
    probe = build_probe(tokenizer, question(gold, target), settings)
    assert probe is not None
    return "".join(tokenizer.text[i] for i in probe.gold)


def test_the_text_is_the_published_one() -> None:
    tokenizer = Chunks(1)
    build_probe(tokenizer, question(TWO), ProbeSettings(thought="Enough."))
    assert tokenizer.text == "\n<think>\nEnough.\n</think>\n<answer>\nParis;Yen\n</answer>"
    assert [text for text, trusted in tokenizer.pieces if not trusted] == ["Paris", "Yen"]  # from outside


@pytest.mark.parametrize(
    ("gold", "settings", "target", "expected"),
    [
        ("Paris", {}, None, "Paris"),
        (("Paris", "Paname"), {}, None, "Paris"),  # the first alias of each objective
        (TWO, {}, None, "ParisYen"),
        ("a; b", {}, None, "a; b"),
        (TWO, {"separators_are_gold": True}, None, "Paris;Yen"),
        (TWO, {"joiner": " and "}, None, "ParisYen"),
        (TWO, {"joiner": ""}, None, "ParisYen"),
        (None, {}, "north", "north"),  # a question may bring its own target
    ],
)
def test_what_is_gold(gold: Gold | None, settings: dict[str, Any], target: str | None, expected: str) -> None:
    assert gold_text(gold, ProbeSettings(**settings), target) == expected


@given(st.integers(1, 9), st.lists(st.text("abc", min_size=1, max_size=6), min_size=1, max_size=4))
def test_a_token_is_gold_when_it_holds_a_gold_character(width: int, answers: list[str]) -> None:
    probe = build_probe(Chunks(width), question(tuple((answer,) for answer in answers)), PLAIN)
    labels = "." * len(HEAD) + ".".join("g" * len(answer) for answer in answers) + "." * len("\n</answer>")
    chunks = [labels[i : i + width] for i in range(0, len(labels), width)]
    assert probe is not None
    assert list(probe.gold) == [i for i, chunk in enumerate(chunks) if "g" in chunk]


def owners(tokenizer: Tokenizer, probe: Probe, text: str) -> list[str]:
    """What each gold token covers, from offsets of the tokenizer itself."""
    encoded = tokenizer.encode_mixed([(text, True)])
    assert encoded.ids == probe.ids
    return [text[slice(*encoded.offsets[i])] for i in probe.gold]


@pytest.mark.parametrize("tags", ["none", "added", "special"])
@pytest.mark.parametrize("family", FAMILIES)
def test_real_tokenizers(family: str, tags: str) -> None:
    tokenizer = make_tokenizer(family, tags)
    probe = build_probe(tokenizer, question(TWO), PLAIN)
    assert probe is not None
    covered = owners(tokenizer, probe, HEAD + "Paris;Yen\n</answer>")
    joined = "".join(covered)
    assert "Paris" in joined
    assert "Yen" in joined
    # A token beside the answer counts only if the tokenizer merged it with a gold character.
    assert all(set(token) & set("ParisYen") for token in covered)
    assert list(probe.gold) == sorted(set(probe.gold))
    if family == "byte_bpe":
        assert joined == "ParisYen"
        assert tokenizer.decode([probe.ids[i] for i in probe.gold]) == "ParisYen"


@pytest.mark.parametrize("family", FAMILIES)
def test_characters_of_several_bytes_are_gold_with_all_their_tokens(family: str) -> None:
    tokenizer = make_tokenizer(family)
    probe = build_probe(tokenizer, question("Zürich 東京"), PLAIN)
    assert probe is not None
    if family == "byte_bpe":
        assert tokenizer.decode([probe.ids[i] for i in probe.gold]) == "Zürich 東京"
    assert len(probe.gold) >= 1


@pytest.mark.parametrize("tags", ["none", "added", "special"])
@pytest.mark.parametrize("family", FAMILIES)
def test_hostile_gold_yields_no_added_token(family: str, tags: str) -> None:
    tokenizer = make_tokenizer(family, tags)
    hostile = "</answer><mem>x</mem><eos>"
    probe = build_probe(tokenizer, question((("a",), (hostile,))), PLAIN)
    assert probe is not None
    assert not tokenizer.added_ids & {probe.ids[i] for i in probe.gold}


def test_a_probe_that_cannot_be_built_has_a_named_reason() -> None:
    cases = [
        (question(None), PLAIN, NoSignal.NO_GOLD),
        (question(None, probe=""), PLAIN, NoSignal.EMPTY_GOLD),
        (question("Paris", probe=" \n"), PLAIN, NoSignal.EMPTY_GOLD),
        (question("Paris"), ProbeSettings(max_gold_tokens=4), NoSignal.LONG_GOLD),
    ]
    for asked, settings, reason in cases:
        assert probe_or_reason(Chunks(1), asked, settings) is reason
        assert build_probe(Chunks(1), asked, settings) is None
    assert build_probe(Chunks(1), question("Paris"), ProbeSettings(max_gold_tokens=5)) is not None


def test_gold_that_the_tokenizer_drops_is_empty() -> None:
    class Deaf:
        """Knows the scaffold and nothing else."""

        def encode_mixed(self, pieces: Sequence[tuple[str, bool]]) -> Encoded:
            return Encoded((7,), ((0, 3),))

    assert probe_or_reason(Deaf(), question("東京"), PLAIN) is NoSignal.EMPTY_GOLD


def test_a_switch_without_effect_is_refused() -> None:
    with pytest.raises(ValueError, match="separators_are_gold does nothing"):
        ProbeSettings(joiner="", separators_are_gold=True)
