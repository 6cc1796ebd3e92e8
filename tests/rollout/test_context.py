"""What the policy sees next, token for token."""

from __future__ import annotations

import dataclasses
import random

import pytest
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import normalizers

from mempo.config.rollout import is_known_context
from mempo.errors import ConfigError
from mempo.rollout.agent import read_turn
from mempo.rollout.context import make_context
from mempo.rollout.interfaces import Context, Generation, ToolResult
from mempo.rollout.render import TRUNCATED_MARK
from mempo.rollout.tokenizer import Tokenizer
from mempo.rollout.trajectory import GenerationStop, Turn, rows_of
from tests.rollout.test_trajectory import make_trajectory
from tests.tiny import FAMILIES, make_agent, make_tokenizer, said, unigram

TEXTS = [
    "<think>first</think><search>capital of France</search>",
    "<mem>Paris</mem><think>second</think><search>capital of Japan</search>",
    "<mem>Paris; Tokyo</mem><think>third</think><search>Yen</search>",
]
NO_LIMIT = 100_000


def make_turns(
    tokenizer: Tokenizer, texts: list[str] = TEXTS, page: str = "page {n}"
) -> tuple[tuple[int, ...], list[Turn]]:
    """A question and turns with their tool results, as the loop makes them (prompts aside)."""
    agent = make_agent(tokenizer)
    turns = []
    for n, text in enumerate(texts):
        turn = read_turn(agent, n, (1,), (), said(tokenizer, text), 1.0)
        result = ToolResult(passages=(page.format(n=n),))
        seen = agent.renderer.observation(result, after_eos=text.endswith("<eos>"))
        turns.append(dataclasses.replace(turn, observation=seen))
    return agent.renderer.question("Who?"), turns


def context(tokenizer: Tokenizer, name: str) -> Context:
    return make_agent(tokenizer, name).context


def seen(
    tokenizer: Tokenizer, name: str, texts: list[str] = TEXTS, limit: int = NO_LIMIT, page: str = "page {n}"
) -> str:
    question, turns = make_turns(tokenizer, texts, page)
    built = context(tokenizer, name).build(question, turns, limit)
    assert built.ids[: len(question)] == question, "the question stands first and unchanged"
    return tokenizer.decode(built.ids[len(question) :])


def shown(n: int) -> str:
    return f"\n<tool_response>\npage {n}\n</tool_response>\n"


TOKENIZERS = {tags: make_tokenizer("byte_bpe", tags) for tags in ("none", "added", "special")}


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS.keys())
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("full", TEXTS[0] + shown(0) + TEXTS[1] + shown(1) + TEXTS[2] + shown(2)),
        ("react", TEXTS[0] + shown(0) + TEXTS[1] + shown(1) + TEXTS[2] + shown(2)),
        ("memory", "<mem>Paris; Tokyo</mem><search>Yen</search>" + shown(2)),
        ("last_turn", TEXTS[2] + shown(2)),
        ("generations", TEXTS[0] + TEXTS[1] + TEXTS[2] + shown(2)),
        ("window(1)", TEXTS[2] + shown(2)),
        ("window(2)", TEXTS[1] + shown(1) + TEXTS[2] + shown(2)),
        ("window(9)", TEXTS[0] + shown(0) + TEXTS[1] + shown(1) + TEXTS[2] + shown(2)),
    ],
)
def test_what_each_context_shows(tokenizer: Tokenizer, name: str, expected: str) -> None:
    assert seen(tokenizer, name) == expected


@pytest.mark.parametrize("name", ["full", "react", "memory", "last_turn", "generations", "window(2)"])
def test_the_first_turn_sees_the_question_alone(name: str) -> None:
    tokenizer = TOKENIZERS["none"]
    question, _ = make_turns(tokenizer)
    assert context(tokenizer, name).build(question, [], NO_LIMIT).ids == question


# --- memory --------------------------------------------------------------------------------------------------------


def test_after_the_first_turn_memory_shows_its_action_and_result() -> None:
    assert seen(TOKENIZERS["none"], "memory", TEXTS[:1]) == "<search>capital of France</search>" + shown(0)


@pytest.mark.parametrize(
    "later",
    [
        "<think>no note</think><search>Yen</search>",
        "<mem></mem><think>empty</think><search>Yen</search>",
        "<think>x</think><search>Yen</search><mem>never closed",
    ],
)
def test_the_last_closed_note_stays_in_force(later: str) -> None:
    text = seen(TOKENIZERS["none"], "memory", [*TEXTS[:2], later])
    assert text == "<mem>Paris</mem><search>Yen</search>" + shown(2)


def test_a_turn_without_a_valid_action_shows_note_and_complaint_alone() -> None:
    text = seen(TOKENIZERS["none"], "memory", [*TEXTS[:2], "<mem>n</mem><search>a</search><answer>b</answer>"])
    assert text == "<mem>n</mem>" + shown(2)


def test_a_reply_that_closed_itself_keeps_its_end_of_sequence() -> None:
    tokenizer = TOKENIZERS["none"]
    assert seen(tokenizer, "memory", [*TEXTS[:2], TEXTS[2] + "<eos>"]) == (
        "<mem>Paris; Tokyo</mem><search>Yen</search><eos>" + shown(2)
    )


@pytest.mark.parametrize("tags", ["none", "added", "special"])
def test_notes_are_copied_by_ids_where_their_edges_are_token_edges(tags: str) -> None:
    tokenizer = TOKENIZERS[tags]
    question, turns = make_turns(tokenizer)
    text = tokenizer.decode_spans(turns[2].own_ids)
    note = turns[2].parsed.note
    assert note is not None
    assert turns[2].note_ids is not None
    if note.end in text.edges:
        assert turns[2].note_span is not None
        assert turns[2].note_ids == turns[2].own_ids[slice(*turns[2].note_span)]
    assert (note.end in text.edges) == (tags != "none"), "`><` straddles where tags are no tokens"
    built = context(tokenizer, "memory").build(question, turns, NO_LIMIT)
    assert built.ids[len(question) :][: len(turns[2].note_ids)] == turns[2].note_ids


STRANGE = [
    "＜",
    "＜mem＞",
    "＜/mem＞",
    "é",
    "東",
    "<unk>",
    "１９",
    "ﬁ",
    " ",
    "  ",
    "a",
    "Paris",
    ">",
    "<",
    "\n",
    "\ufffd",
]


def nfkc() -> HfTokenizer:
    """A vocabulary whose texts are normalised: what is encoded again from `＜mem＞` would read `<mem>`."""
    t = unigram()
    t.normalizer = normalizers.NFKC()
    return t


@pytest.mark.parametrize("tags", ["none", "added", "special"])
@pytest.mark.parametrize("family", [*sorted(FAMILIES), "nfkc"])
def test_full_width_letters_unknown_tokens_and_halves_of_letters_stay_as_sampled(
    family: str, tags: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens inside an element are copied whatever they are; only the space some tokens begin with may stand before
    its tag."""
    monkeypatch.setitem(FAMILIES, "nfkc", nfkc)
    tokenizer = make_tokenizer(family, tags, **({} if family == "byte_bpe" else {"unk_token": "<unk>"}))
    agent, behind, rng = make_agent(tokenizer), tokenizer.encode_untrusted("a"), random.Random(f"{family} {tags}")
    unknown = tokenizer.hf.unk_token_id
    halves = [i for i in range(tokenizer.size) if "\ufffd" in tokenizer.piece(i)]

    def strange(most: int) -> tuple[int, ...]:
        ids: tuple[int, ...] = ()
        for _ in range(rng.randrange(most + 1)):
            kind = rng.random()
            if kind < 0.15 and halves:
                ids += (rng.choice(halves),)
            elif kind < 0.3 and unknown is not None:
                ids += (unknown,)
            elif kind < 0.5:
                ids += (rng.randrange(tokenizer.size),)
            else:
                ids += tokenizer.encode_trusted(rng.choice(STRANGE))
        return ids

    def text(most: int) -> str:
        return "".join(rng.choice(STRANGE) for _ in range(rng.randrange(most + 1)))

    checked = 0
    for case in range(300):
        ids: tuple[int, ...] = ()
        if case % 2:
            for tag in ("mem", "think", "search"):
                ids += (
                    strange(1)
                    + tokenizer.encode_trusted(f"<{tag}>")
                    + strange(4)
                    + tokenizer.encode_trusted(f"</{tag}>")
                )
        else:
            ids = tokenizer.encode_trusted(f"{text(1)}<mem>{text(4)}</mem>{text(1)}<search>{text(4)}</search>{text(1)}")
        turn = read_turn(agent, 1, (1,), (), Generation(ids, (0.0,) * len(ids), GenerationStop.EOS), 1.0)
        decoded = tokenizer.decode_spans(ids)
        for copied, element in ((turn.note_ids, turn.parsed.note), (turn.action_ids, turn.parsed.action_element)):
            if copied is None or element is None:
                continue
            checked += 1
            places = zip(decoded.starts, decoded.starts[1:], strict=False)
            inside = [k for k, (a, b) in enumerate(places) if element.start <= a < b <= element.end]
            middle = ids[inside[0] : inside[-1] + 1]
            assert any(copied[k : k + len(middle)] == middle for k in range(len(copied)))
            running = tokenizer.decode(behind + copied).removeprefix(tokenizer.decode(behind))
            assert running.lstrip(" ") == decoded.text[element.start : element.end]
    assert checked > 200


# --- rows ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rows"), [("full", 1), ("react", 1), ("memory", 3), ("last_turn", 2), ("window(2)", 1), ("window(1)", 2)]
)
def test_how_many_rows_a_rollout_of_three_turns_makes(name: str, rows: int) -> None:
    tokenizer = TOKENIZERS["none"]
    question, turns = make_turns(tokenizer)
    built = context(tokenizer, name)
    prompted = [
        dataclasses.replace(turn, prompt_ids=built.build(question, turns[:n], NO_LIMIT).ids)
        for n, turn in enumerate(turns)
    ]
    made = rows_of(make_trajectory(*prompted))
    assert len(made) == rows
    sampled = [made_row.ids[s.start : s.stop] for made_row in made for s in made_row.segments]
    assert sampled == [turn.generated_ids for turn in turns]


# --- over the limit ------------------------------------------------------------------------------------------------

PAGE = "[{n}] " + "capital of France " * 30


@pytest.mark.parametrize("name", ["full", "memory", "last_turn", "generations", "window(2)"])
def test_what_is_over_the_limit_is_cut_inside_passages(name: str) -> None:
    tokenizer = TOKENIZERS["none"]
    question, turns = make_turns(tokenizer, page=PAGE)
    whole = context(tokenizer, name).build(question, turns, NO_LIMIT)
    for limit in (len(whole.ids) - 1, len(whole.ids) - 60):
        built = context(tokenizer, name).build(question, turns, limit)
        assert not built.overflow
        assert len(built.ids) <= limit
        assert built.cut_tokens == len(whole.ids) - len(built.ids)
        assert built.ids[: len(question)] == question
        text, before = tokenizer.decode(built.ids), tokenizer.decode(whole.ids)
        assert TRUNCATED_MARK in text
        for kept in ("<tool_response>", "</tool_response>", "<search>", "</search>", "<mem>", "</mem>"):
            assert text.count(kept) == before.count(kept)


def test_the_oldest_result_is_cut_first() -> None:
    tokenizer = TOKENIZERS["none"]
    question, turns = make_turns(tokenizer, page=PAGE)
    whole = context(tokenizer, "full").build(question, turns, NO_LIMIT)
    pages = tokenizer.decode(context(tokenizer, "full").build(question, turns, len(whole.ids) - 30).ids).split(
        "<tool_response>"
    )
    assert [TRUNCATED_MARK in page for page in pages] == [False, True, False, False]


def test_a_question_that_alone_is_too_long_is_an_overflow_and_not_cut() -> None:
    tokenizer = TOKENIZERS["none"]
    question, turns = make_turns(tokenizer, page=PAGE)
    for name in ("full", "memory"):
        built = context(tokenizer, name).build(question, [], len(question) - 1)
        assert built.overflow
        assert built.ids == question
        built = context(tokenizer, name).build(question, turns, len(question))
        assert built.overflow
        assert built.ids[: len(question)] == question


# --- names ---------------------------------------------------------------------------------------------------------


def test_an_unknown_context_is_refused_with_the_nearest() -> None:
    renderer = make_agent(TOKENIZERS["none"]).renderer
    with pytest.raises(ConfigError, match="unknown context 'memroy'; did you mean 'memory'"):
        make_context("memroy", renderer)
    for name in ("window(0)", "window()", "window(-1)", "window", "full "):
        assert not is_known_context(name)
        with pytest.raises(ConfigError, match="known: full"):
            make_context(name, renderer)
    assert is_known_context("window(3)")
