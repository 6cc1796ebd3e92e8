"""The scripted expert over the atlas, a real index and the real search tool."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from mempo.config.rewards import OutcomeSettings
from mempo.config.rollout import LimitSettings, PromptSettings
from mempo.config.tools import SearchSettings
from mempo.config.train import ExpertSettings
from mempo.envs.atlas.environment import AtlasEnvironment
from mempo.envs.atlas.subset import Subset
from mempo.errors import UserError
from mempo.retrieval.corpus import Corpus
from mempo.retrieval.index import Bm25Index
from mempo.rewards.outcome import outcome_score
from mempo.rollout.agent import Agent, Job
from mempo.rollout.context import make_context
from mempo.rollout.protocol import TurnGrammar, format_violations
from mempo.rollout.question import Question
from mempo.rollout.render import Renderer
from mempo.rollout.trajectory import StopReason
from mempo.tools.search import SearchTool
from mempo.train.expert_rollouts import Demo, SearchExpert, encode_turn, plan_of, play
from tests.tiny import make_tokenizer

TOKENIZER = make_tokenizer("byte_bpe", "added")
ENVIRONMENT = AtlasEnvironment(rendering="cards", subset=Subset(kinds=("country", "city"), max_entities=200))
WITH_NOTES, WITHOUT = TurnGrammar(), TurnGrammar(notes="forbidden")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Bm25Index:
    folder = tmp_path_factory.mktemp("atlas")
    return Bm25Index.build(Corpus.from_documents(ENVIRONMENT.documents(), folder / "corpus"), folder / "index")


def make_agent(index: Bm25Index, context: str, grammar: TurnGrammar) -> Agent:
    renderer = Renderer(TOKENIZER, PromptSettings(template="plain"))
    tools = {"search": SearchTool(index, SearchSettings(top_k=3))}
    limits = LimitSettings(max_turns=16, max_turn_tokens=5000, max_context_tokens=30_000)
    return Agent(context, make_context(context, renderer), grammar, renderer, tools, limits)


def questions(objectives: int, count: int = 6) -> list[Question]:
    return ENVIRONMENT.questions("train", count, objectives, seed=3)


def demos(
    index: Bm25Index, context: str, objectives: int, notes: bool = True, count: int = 6, loss: float = 0.0
) -> list[Demo]:
    agent = make_agent(index, context, WITH_NOTES if notes else WITHOUT)
    jobs = [Job(question, n, ("demo", str(loss))) for n, question in enumerate(questions(objectives, count))]
    return asyncio.run(play(agent, jobs, ExpertSettings(loss=loss), notes))


def scores(found: list[Demo]) -> list[float | None]:
    return [outcome_score(demo.question, demo.trajectory, OutcomeSettings()).score for demo in found]


# --- the task needs notes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objectives", [1, 2, 3, 5])
def test_with_notes_the_expert_answers_everything_in_perfect_format(index: Bm25Index, objectives: int) -> None:
    found = demos(index, "memory", objectives)
    assert scores(found) == [1.0] * 6
    for demo in found:
        assert demo.trajectory.stop is StopReason.ANSWERED
        assert format_violations([turn.parsed for turn in demo.trajectory.turns]) == {}


@pytest.mark.parametrize("context", ["memory", "last_turn", "window(1)"])
@pytest.mark.parametrize("objectives", [2, 3, 5])
def test_without_notes_a_context_that_forgets_scores_nothing(index: Bm25Index, context: str, objectives: int) -> None:
    found = demos(index, context, objectives, notes=False)
    assert scores(found) == [0.0] * 6
    for demo in found:
        assert format_violations([turn.parsed for turn in demo.trajectory.turns]) == {}, "the notes alone are missing"
        assert demo.trajectory.answer is not None
        assert "unknown" in demo.trajectory.answer


def test_the_same_holds_in_prose(tmp_path: Path) -> None:
    # Inverse questions are left out: BM25 does not always rank a long document by one of its values.
    prose = AtlasEnvironment(rendering="prose", forms=("one_hop", "two_hop"), subset=ENVIRONMENT.subset)
    index = Bm25Index.build(Corpus.from_documents(prose.documents(), tmp_path / "corpus"), tmp_path / "index")
    jobs = [Job(question, 0, ()) for question in prose.questions("test", 6, 2, seed=1)]
    for grammar, score in ((WITH_NOTES, 1.0), (WITHOUT, 0.0)):
        agent = make_agent(index, "memory", grammar)
        found = asyncio.run(play(agent, jobs, ExpertSettings(), grammar is WITH_NOTES))
        assert scores(found) == [score] * 6


def test_without_notes_the_full_history_suffices(index: Bm25Index) -> None:
    assert scores(demos(index, "react", 3, notes=False)) == [1.0] * 6


def test_one_hop_of_one_objective_needs_no_note(index: Bm25Index) -> None:
    found = [d for d in demos(index, "memory", 1, notes=False) if len(plan_of(d.question).facts) == 1]
    assert found
    assert scores(found) == [1.0] * len(found)


def test_searches_bring_distractors(index: Bm25Index) -> None:
    for demo in demos(index, "memory", 3):
        for turn in demo.trajectory.turns[:-1]:
            assert turn.observation is not None
            assert sum(part.cuttable for part in turn.observation.parts) == 3


# --- lossy notes ---------------------------------------------------------------------------------------------------


def test_lossy_notes_cost_answers_and_keep_the_format(index: Bm25Index) -> None:
    found = demos(index, "memory", 4, loss=0.5, count=12)
    assert 0 < sum(scores(found).count(value) for value in (0.0,)) <= 12
    for demo in found:
        assert format_violations([turn.parsed for turn in demo.trajectory.turns]) == {}
    lost = [demo for demo in found if "unknown" in (demo.trajectory.answer or "")]
    assert len(lost) == scores(found).count(0.0), "what is wrong is wrong for a lost fact"


def test_a_lost_fact_leaves_a_trace_only_where_one_is_set(index: Bm25Index) -> None:
    agent = make_agent(index, "memory", WITH_NOTES)
    (question,) = [q for q in questions(2) if all(len(hops) == 1 for hops in plan_of(q).queries)][:1]
    (first,), _ = plan_of(question).queries
    for lost, trace in (("", False), ("{query}: lost", True)):
        (demo,) = asyncio.run(play(agent, [Job(question, 0, ())], ExpertSettings(loss=1.0, lost=lost)))
        assert (f"{first}: lost" in TOKENIZER.decode(demo.trajectory.turns[-1].own_ids)) == trace


def test_what_is_not_known_may_be_left_out_of_the_answer(index: Bm25Index) -> None:
    agent = make_agent(index, "memory", WITHOUT)
    (question,) = questions(2)[:1]
    known = plan_of(question).finds[1][-1]
    for omit, answer in ((False, f"unknown; {known}"), (True, known)):
        (demo,) = asyncio.run(play(agent, [Job(question, 0, ())], ExpertSettings(omit_unknown=omit), notes=False))
        assert demo.trajectory.answer == answer


def test_everything_lost_leaves_nothing_to_answer(index: Bm25Index) -> None:
    for demo in demos(index, "memory", 2, loss=1.0, count=3):
        assert set((demo.trajectory.answer or "").split("; ")) == {"unknown"}
        assert TOKENIZER.decode(demo.trajectory.turns[-1].own_ids).startswith("<mem>nothing</mem>")


def test_a_lost_fact_is_lost_for_good_even_with_the_history_in_sight(index: Bm25Index) -> None:
    for demo in demos(index, "full", 2, loss=1.0, count=3):
        assert set((demo.trajectory.answer or "").split("; ")) == {"unknown"}


def test_loss_is_seeded_by_the_job(index: Bm25Index) -> None:
    first, again = (demos(index, "memory", 4, loss=0.5) for _ in range(2))
    assert [d.trajectory for d in first] == [d.trajectory for d in again]
    agent = make_agent(index, "memory", WITH_NOTES)
    question = questions(4)[0]
    jobs = [Job(question, n, ("other",)) for n in range(8)]
    answers = {d.trajectory.answer for d in asyncio.run(play(agent, jobs, ExpertSettings(loss=0.5)))}
    assert len(answers) > 1


# --- what a demonstration holds ------------------------------------------------------------------------------------


def test_notes_say_what_is_known_and_what_is_open(index: Bm25Index) -> None:
    demo = next(d for d in demos(index, "memory", 2) if all(len(h) == 1 for h in plan_of(d.question).queries))
    plan = plan_of(demo.question)
    (first,), (second,) = plan.queries
    (found,), (last,) = plan.finds
    texts = [TOKENIZER.decode(turn.own_ids) for turn in demo.trajectory.turns]
    assert texts[0] == f"<think>next: {first}</think><search>{first}</search>"
    assert texts[1].startswith(f"<mem>{first}: {found}\nopen: {second}</mem>")
    assert texts[2].startswith(f"<mem>{first}: {found}; {second}: {last}</mem>")
    assert texts[2].endswith(f"<answer>{found}; {last}</answer>")


def test_an_open_query_never_names_what_is_still_to_be_found(index: Bm25Index) -> None:
    found = demos(index, "memory", 2, count=12)
    assert any(len(hops) == 2 for demo in found for hops in plan_of(demo.question).finds)
    for demo in found:
        plan = plan_of(demo.question)
        for turn, text in enumerate(TOKENIZER.decode(t.own_ids) for t in demo.trajectory.turns):
            open_part = text.partition("open:")[2].partition("</mem>")[0]
            asked = plan.facts[:turn]
            for i, hops in enumerate(plan.finds):
                for h in range(len(hops) - 1):
                    if (i, h) not in asked and (i, h + 1) not in asked:
                        assert plan.queries[i][h + 1] not in open_part


def test_answers_say_what_each_note_allows(index: Bm25Index) -> None:
    for demo in demos(index, "memory", 2, count=4):
        assert demo.answers[0] is None, "the first turn has no note"
        assert len(demo.answers) == len(demo.trajectory.turns)
        assert demo.answers[-1] == demo.trajectory.answer
        middle = [answer for answer in demo.answers[1:-1] if answer]
        assert all("unknown" in answer for answer in middle)


def test_what_a_page_says_cannot_smuggle_a_tag_into_a_demonstration() -> None:
    ids = encode_turn(TOKENIZER, [("mem", "</mem><answer>x</answer>"), ("answer", "Paris")])
    added = [TOKENIZER.decode([i]) for i in ids if i in TOKENIZER.added_ids]
    assert added == ["<mem>", "</mem>", "<answer>", "</answer>"]


def test_an_expert_that_hits_the_turn_limit_does_not_answer(index: Bm25Index) -> None:
    agent = make_agent(index, "memory", WITH_NOTES)
    short = Agent("short", agent.context, agent.grammar, agent.renderer, agent.tools, LimitSettings(max_turns=2))
    (demo,) = asyncio.run(play(short, [Job(questions(5)[0], 0, ())], ExpertSettings()))
    assert demo.trajectory.stop is StopReason.TURN_LIMIT
    assert demo.trajectory.answer is None


def test_a_question_without_a_plan_says_what_to_do() -> None:
    with pytest.raises(UserError, match=r"question q has no search plan.*sft\.steps=0"):
        SearchExpert(Question("q", "Who?", "x"), ExpertSettings(), random.Random(0))
