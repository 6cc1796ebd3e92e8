"""From a configuration to the objects that a run works with: data first, models last."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, cast

from mempo.config import Config
from mempo.config.base import is_import_path
from mempo.config.data import DataSettings
from mempo.data.objectives import compose_objectives
from mempo.data.questions import read_questions
from mempo.engine.batcher import BatchingSampler
from mempo.engine.policy import Policy
from mempo.engine.prefix_forward import SharedForward
from mempo.engine.sampler import generate_batch
from mempo.engine.scorer import LocalScorer
from mempo.engine.vllm import require_vllm
from mempo.engine.vllm_sampler import VllmSampler
from mempo.envs.data import Data
from mempo.envs.registry import make_environment
from mempo.errors import ConfigError, UserError
from mempo.retrieval.client import HttpRetriever, token_from_environment
from mempo.retrieval.corpus import Corpus
from mempo.retrieval.document import Retriever
from mempo.retrieval.index import Bm25Index, open_index
from mempo.rewards.outcome import CustomScore, matchable
from mempo.rollout.agent import Agent
from mempo.rollout.context import make_context
from mempo.rollout.interfaces import Context, Environment, InteractiveEnvironment, Tool
from mempo.rollout.plugins import call_own, load_own
from mempo.rollout.protocol import TurnGrammar
from mempo.rollout.question import Question
from mempo.rollout.render import Renderer
from mempo.rollout.tokenizer import Tokenizer
from mempo.tools.make import make_tool, own_tool, told
from mempo.train.advantages import AdvantageFunction
from mempo.train.own_advantages import own_advantages
from mempo.train.score_batch import Scoring


def load_data(config: Config, work_dir: Path, train_too: bool = True) -> Data:
    """Load or draw the questions and open the retriever; a corpus file is indexed into `work_dir`.

    `train_too` False: an evaluation, which needs no training questions.

    Raises:
        UserError: missing or broken files, a retrieval server that does not answer.
    """
    data, seed = config.data, config.seed
    environment = make_environment(data.environment, data.environment_options) if data.environment else None
    test_objectives = data.test_objectives or data.objectives
    remarks: list[str] = []
    train = _from_file(data.train, data, data.objectives, seed, remarks) if data.train and train_too else []
    test = _from_file(data.test, data, test_objectives, seed, remarks) if data.test else []
    test = _first_of_each(test, config.evaluate.questions)
    if environment is not None:
        _check_playable(environment, data, [*train, *test])
        if train_too:
            train = train or _drawn(environment, "train", data.train_questions, data.objectives, seed)
        test = test or _drawn(
            environment, "test", config.evaluate.questions * len(test_objectives), test_objectives, seed
        )
    unscorable = [question.id for question in train if question.gold is None]
    if unscorable and config.rl.steps:
        raise UserError(f"{len(unscorable)} training questions have no gold answer, the first is {unscorable[0]!r}")
    for name, questions in (("training", train), ("test", test)):
        lost = [question.id for question in questions if question.gold and not matchable(question, config.reward)]
        if lost and len(lost) == len(questions) and not is_import_path(config.reward.score):
            raise UserError(
                f"no {name} question can be scored: normalisation leaves nothing of the gold answers of all "
                f"{len(lost)}, the first is {lost[0]!r}; give answers with letters or digits, or set an own reward"
            )
    return Data(environment, train, test, open_retriever(config, environment, work_dir), remarks)


def _check_playable(environment: Environment, data: DataSettings, questions: Sequence[Question]) -> None:
    """Only an environment plays questions that it did not draw itself, and they must hold what it needs.

    Raises:
        UserError: another kind of environment, or a question in which no episode can begin.
    """
    given = [name for name in ("train", "test") if getattr(data, name)]
    if given and not isinstance(environment, InteractiveEnvironment):
        raise ConfigError(
            f"data.environment is set, so data.{given[0]} would be ignored; unset one (data.environment=null)"
        )
    if isinstance(environment, InteractiveEnvironment):
        for question in questions:
            call_own(f"environment {environment.name}", environment.episode, question)


def _drawn(environment: Environment, split: str, count: int, objectives: Sequence[int], seed: int) -> list[Question]:
    """`count` questions in all, the numbers of objectives in turn, so that a batch mixes them."""
    share = -(-count // len(objectives))
    lists = [
        list(call_own(f"environment {environment.name}", environment.questions, split, share, k, seed) or ())
        for k in objectives
    ]
    # A small environment may have fewer than were asked for.
    drawn = [question for row in zip_longest(*lists) for question in row if question is not None][:count]
    if not drawn and split == "train":
        raise UserError(
            f"environment {environment.name} has no {split} questions with {', '.join(map(str, objectives))} "
            + ("objective" if tuple(objectives) == (1,) else "objectives")
        )
    return drawn


def _from_file(
    path: str, data: DataSettings, objectives: Sequence[int], seed: int, remarks: list[str]
) -> list[Question]:
    """The questions of a file; its form and what was left out of it are added to `remarks`."""
    questions, _, said = read_questions(path, skip_bad=data.skip_bad, where=data.where)
    remarks += said
    if tuple(objectives) == (1,):
        return questions  # as they are, several objectives and all
    made = []
    for k in objectives:
        if k == 1:
            made += questions
            continue
        composed, left_over = compose_objectives(questions, k, seed)
        made += composed
        if left_over:
            remarks.append(f"{k} objectives: the last {len(left_over)} questions of {path} were too few for another")
    return made


def _first_of_each(questions: Sequence[Question], count: int) -> list[Question]:
    """At most `count` questions for each number of objectives."""
    seen: dict[int, int] = {}
    kept = []
    for question in questions:
        k = len(question.objectives)
        seen[k] = seen.get(k, 0) + 1
        if seen[k] <= count:
            kept.append(question)
    return kept


def open_retriever(config: Config, environment: Environment | None, work_dir: Path) -> Retriever | None:
    """The server, the index, or a new BM25 index of the corpus; None when there is nothing to search."""
    data = config.data
    if data.server:
        client = HttpRetriever.of(data.server, data.client, token=token_from_environment())
        client.health()
        return client
    if data.index:
        return open_index(data.index)
    if data.corpus:
        return Bm25Index.build(Corpus.open(data.corpus, work_dir / "corpus"), work_dir / "index")
    if environment is not None:
        documents = cast("Any", environment.documents())
        if not documents:
            return None
        return Bm25Index.build(Corpus.from_documents(documents, work_dir / "corpus"), work_dir / "index")
    return None


def make_tools(config: Config, retriever: Retriever | None) -> dict[str, Tool]:
    """Tools by the tag they answer.

    Raises:
        ConfigError: a built-in tool without anything to search, an own one that is no tool, two that answer one tag.
        UserError: a tool of the live web without its key or its libraries.
    """
    tools: dict[str, Tool] = {}
    for name in config.agent.tools:
        if is_import_path(name):
            tool = own_tool(name)
        else:
            tool = make_tool(name, retriever, config.search, config.access)
        if tool.name in tools:
            raise ConfigError(
                f"agent.tools: {name} answers {tool.name!r}, which another tool in the list answers already"
            )
        tools[tool.name] = tool
    return tools


def make_agent(
    config: Config,
    tokenizer: Tokenizer,
    tools: dict[str, Tool],
    environment: Environment | None = None,
    context: str | None = None,
) -> Agent:
    """The agent of a configuration, or the same with another context. An environment adds its actions.

    Raises:
        ConfigError: contradictions, own objects that are none, an action that two would answer or none.
    """
    environment = environment if isinstance(environment, InteractiveEnvironment) else None
    own_actions = environment.actions if environment else ()
    if environment is not None and (both := [action for action in own_actions if action in tools]):
        raise ConfigError(
            f"agent.tools: {both[0]} is an action of environment {environment.name} already; leave the tool out"
        )
    renderer = Renderer(tokenizer, config.prompt, told(tools.values()))
    if renderer.opens_thought and config.agent.notes == "required":
        raise ConfigError(
            "the chat template begins every reply with <think>, but notes come before thoughts, so no turn could keep "
            "the format; set prompt.force_mem=true, prompt.template=plain or agent.notes=forbidden"
        )
    name = context or config.agent.context
    if is_import_path(name):
        made = call_own(f"agent.context: {name}", load_own(name, "agent.context"), renderer)
        if not isinstance(made, Context):
            raise ConfigError(f"agent.context: {name} returned a {type(made).__name__}, which has no name and build()")
    else:
        made = make_context(name, renderer)
    grammar = TurnGrammar(config.agent.notes, config.agent.first_note, (*own_actions, *tools, "answer"))
    return Agent(made.name, made, grammar, renderer, tools, config.limits, environment)


def custom_score(config: Config) -> CustomScore | None:
    return load_own(config.reward.score, "reward") if is_import_path(config.reward.score) else None


def advantage_function(config: Config) -> AdvantageFunction | None:
    return own_advantages(load_own(config.advantages.function, "advantages")) if config.advantages.function else None


def make_scoring(config: Config, agent: Agent, window_tokens: int | None) -> Scoring:
    """How a run scores its rollouts, with the user's own functions. `window_tokens`: the most that the scorer sees."""
    return Scoring(
        outcome=config.reward,
        memory=config.memory,
        advantages=config.advantages,
        tokenizer=agent.renderer.tokenizer,
        window_tokens=window_tokens,
        memory_signal=config.rl.memory_signal,
        custom_score=custom_score(config),
        own_advantages=advantage_function(config),
        grammar=agent.grammar,
        max_failed_share=config.rl.max_failed_share,
    )


def make_sampler(config: Config, policy: Policy, forward: SharedForward) -> BatchingSampler:
    """The policy as a sampler. What the local one keeps in `forward`, a scorer with the same `forward` uses.

    Raises:
        UserError: `sampler.engine` is vllm and vLLM is not installed.
    """
    schedule = config.rl.schedule
    if schedule == "auto":
        schedule = "lockstep" if policy.device.type == "cpu" else "eager"
    if config.sampler.engine == "vllm":
        require_vllm()
        scorer = LocalScorer(policy, forward=forward)
        return BatchingSampler(VllmSampler(policy, config.sampler, config.limits.max_context_tokens, scorer), schedule)
    return BatchingSampler(lambda prompts, sampling: generate_batch(policy, prompts, sampling, forward), schedule)


def check_window(config: Config, window: int | None) -> None:
    """Refuse a context limit that the model cannot see."""
    limit = config.limits.max_context_tokens
    if window is not None and limit > window:
        raise ConfigError(
            f"limits.max_context_tokens is {limit} but the model sees {window} tokens; "
            f"set limits.max_context_tokens={window}"
        )
