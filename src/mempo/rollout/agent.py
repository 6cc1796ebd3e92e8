"""The agent loop: PENDING → GENERATING → TOOL → DONE, many rollouts at once over one policy.

One loop serves training, evaluation, demonstrations and the cluster; only the sampler behind it and the context in
front of it change. Limits are values (`StopReason`), never exceptions; a failing tool is data.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mempo.config.rollout import DecodingSettings, LimitSettings
from mempo.errors import UserError
from mempo.rollout.interfaces import (
    CohortSampler,
    Context,
    Generation,
    InteractiveEnvironment,
    Sampler,
    SamplerError,
    SamplingParams,
    Tool,
    ToolErrorKind,
    ToolResult,
)
from mempo.rollout.protocol import Element, ParsedTurn, ParseOutcome, TurnGrammar, closing, opening, parse_turn
from mempo.rollout.question import Question
from mempo.rollout.render import Renderer
from mempo.rollout.tokenizer import Decoded, Tokenizer
from mempo.rollout.trajectory import GenerationStop, StopReason, Trajectory, Turn
from mempo.rollout.waits import Waiting

T = TypeVar("T")


@dataclass(frozen=True)
class Agent:
    """An agent = context + grammar + prompt, with its tools and limits.

    `tools` are shared by all rollouts; an environment adds tools with a state of its own to every rollout.
    """

    name: str
    context: Context
    grammar: TurnGrammar
    renderer: Renderer
    tools: Mapping[str, Tool]
    limits: LimitSettings = field(default_factory=LimitSettings)
    environment: InteractiveEnvironment | None = None


@dataclass(frozen=True)
class Beginning:
    """How a rollout begins that goes on from another: its first turns, and of the turn after them the prompt and the
    first own tokens (forced ones included), such as a note. What is written here is nothing the policy does now: the
    turn's `forced_ids`."""

    turns: tuple[Turn, ...]
    prompt_ids: tuple[int, ...]
    own_ids: tuple[int, ...]


@dataclass(frozen=True)
class Job:
    """One rollout to make. `key` seeds its noise: run seed, step, and what else tells rollouts apart."""

    question: Question
    rollout: int
    key: tuple[int | str, ...]
    beginning: Beginning | None = None


@dataclass
class Tally:
    """How far rollouts are, for whoever shows it: `tell` is called when one begins or ends, and after every turn."""

    total: int
    tell: Callable[[Tally], None] = lambda tally: None
    in_flight: int = 0
    done: int = 0
    turns: int = 0

    def count(self, in_flight: int = 0, done: int = 0, turns: int = 0) -> None:
        self.in_flight, self.done, self.turns = self.in_flight + in_flight, self.done + done, self.turns + turns
        self.tell(self)

    @property
    def note(self) -> str:
        """What stands beside the number of those that are done."""
        return f"{self.in_flight} in flight, {self.turns} turns"


def noise_seed(*key: int | str) -> int:
    """A 63-bit seed that depends on every part of the key, and on nothing else."""
    digest = hashlib.blake2b("\x1f".join(map(str, key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


async def run_rollouts(
    agent: Agent,
    sampler: Sampler,
    jobs: Sequence[Job],
    decoding: DecodingSettings | None = None,
    tell: Callable[[Tally], None] = lambda tally: None,
) -> list[Trajectory]:
    """All jobs at once; trajectories come back in the order of the jobs. `tell` is called as they go on."""
    tally = Tally(len(jobs), tell)
    cohort = sampler if isinstance(sampler, CohortSampler) else None
    if cohort is not None:
        cohort.enter(len(jobs))

    async def one(job: Job) -> Trajectory:
        try:
            tally.count(in_flight=1)
            return await rollout(agent, sampler, job, decoding or DecodingSettings(), tally)
        finally:
            tally.count(in_flight=-1, done=1)
            if cohort is not None:
                cohort.leave()

    return await at_once((one(job) for job in jobs), in_turn=cohort is None)


async def at_once(parts: Iterable[Coroutine[Any, Any, T]], in_turn: bool) -> list[T]:
    """All of them together, and what they return. `in_turn`: each goes as far as it can before the next begins, so that
    the first has its request under way while the last is still being prepared; not for a sampler that batches what is
    asked at one time."""
    if not in_turn:
        return await asyncio.gather(*parts)
    tasks: list[asyncio.Task[T]] = []
    try:
        for part in parts:
            tasks.append(asyncio.create_task(part))
            await asyncio.sleep(0)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # none goes on behind the caller's back
        raise
    return await asyncio.gather(*tasks)


async def rollout(
    agent: Agent, sampler: Sampler, job: Job, decoding: DecodingSettings, tally: Tally | None = None
) -> Trajectory:
    """Play one question to its end. `tally` counts its turns."""
    question_ids = agent.renderer.question(job.question.text)
    beginning = job.beginning
    turns: list[Turn] = [] if beginning is None else list(beginning.turns)

    def done(stop: StopReason, answer: str | None = None, error: str | None = None) -> Trajectory:
        return Trajectory(job.question.id, job.rollout, question_ids, tuple(turns), stop, answer, error)

    limits = agent.limits
    try:
        tools = tools_of(agent, job.question)
    except UserError:
        raise
    except Exception as error:  # an environment that does not start is infrastructure, as a tool is
        return done(StopReason.TOOL_ERROR, error=f"the environment did not start ({_told(error)})")
    if agent.environment is not None:  # its tools have a state, which is what the first turns made of it
        for turn in turns:
            await answer_action(agent, tools, turn.parsed)
    while True:
        # PENDING: what does the policy see, and how much may it write?
        index = len(turns)
        if index == limits.max_turns:
            return done(StopReason.TURN_LIMIT)
        forced = agent.renderer.forced(index)
        written = 0  # tokens that another rollout sampled, and this one has no longer to spend
        if beginning is not None and index == len(beginning.turns):
            written = len(beginning.own_ids) - len(forced)
            prompt_ids, forced = beginning.prompt_ids, beginning.own_ids
        else:
            limit = limits.max_context_tokens - len(forced) - limits.min_turn_tokens
            prompt_ids = agent.context.build(question_ids, turns, limit).ids
        room = limits.max_context_tokens - len(forced) - len(prompt_ids)
        if room <= 0:
            return done(StopReason.CONTEXT_OVERFLOW)
        spent = written + sum(len(turn.generated_ids) for turn in turns)
        left = None if limits.max_rollout_tokens is None else limits.max_rollout_tokens - spent
        if left is not None and left <= 0:
            return done(StopReason.TOKEN_LIMIT)

        # GENERATING
        sampling = SamplingParams(
            max_new_tokens=min(limits.max_turn_tokens - written, room, room if left is None else left),
            temperature=decoding.temperature,
            top_p=decoding.top_p,
            top_k=decoding.top_k,
            stop=agent.grammar.stop_strings,
            seed=noise_seed(*job.key, job.question.id, job.rollout, index),
        )
        try:
            with Waiting(job.question.id, job.rollout, index, "the policy", local=True):
                generation = await sampler.generate(prompt_ids + forced, sampling)
        except SamplerError as error:
            return done(StopReason.SAMPLER_ERROR, error=str(error))
        turn = read_turn(agent, index, prompt_ids, forced, generation, decoding.temperature or 1.0)
        turns.append(turn)
        if tally is not None:
            tally.count(turns=1)

        # DONE, or TOOL?
        if turn.parsed.is_answer and turn.parsed.action is not None:
            return done(StopReason.ANSWERED, turn.parsed.action.text)
        if generation.stop is GenerationStop.LENGTH and sampling.max_new_tokens < limits.max_turn_tokens - written:
            return done(StopReason.TOKEN_LIMIT if sampling.max_new_tokens == left else StopReason.CONTEXT_OVERFLOW)
        if limits.max_malformed_turns and malformed_tail(turns) >= limits.max_malformed_turns:
            return done(StopReason.MALFORMED)
        if index + 1 == limits.max_turns:
            return done(StopReason.TURN_LIMIT)
        with Waiting(job.question.id, job.rollout, index, turn.parsed.action.kind if turn.parsed.action else "nothing"):
            result = await answer_action(agent, tools, turn.parsed)
        error = result.notice if result.error == ToolErrorKind.UNAVAILABLE else None
        after_eos = not agent.renderer.tokenizer.eos_ids.isdisjoint(turn.generated_ids[-1:])
        observation = agent.renderer.observation(result, limits.max_obs_tokens, after_eos)
        turns[-1] = dataclasses.replace(turn, observation=observation, tool_error=error)
        if sum(t.tool_error is not None for t in turns) >= limits.max_tool_errors:
            return done(StopReason.TOOL_ERROR, error=error)


def tools_of(agent: Agent, question: Question) -> dict[str, Tool]:
    """The tools of one rollout: those that all share, and those that the environment makes for it alone.

    Raises:
        TypeError: what the environment returned are no tools for its actions.
    """
    if agent.environment is None:
        return dict(agent.tools)
    own = dict(agent.environment.episode(question))
    for tag, tool in own.items():
        if tag not in agent.environment.actions or not isinstance(tool, Tool):
            raise TypeError(f"episode() returned {tag!r}: {type(tool).__name__}, no tool for one of its actions")
    return {**agent.tools, **own}


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def malformed_tail(turns: Sequence[Turn]) -> int:
    """How many turns without a valid action there are since the last one that had one."""
    return next((n for n, turn in enumerate(reversed(turns)) if turn.parsed.action is not None), len(turns))


def read_turn(
    agent: Agent,
    index: int,
    prompt_ids: tuple[int, ...],
    forced_ids: tuple[int, ...],
    generation: Generation,
    temperature: float,
) -> Turn:
    """Parse what was sampled and find its note in tokens."""
    tokenizer = agent.renderer.tokenizer
    own_ids = forced_ids + generation.ids
    ended_by_eos = generation.stop is GenerationStop.EOS and generation.ids[-1] in tokenizer.eos_ids
    decoded = tokenizer.decode_spans(own_ids[:-1] if ended_by_eos else own_ids)
    parsed = parse_turn(decoded.text, index, agent.grammar, truncated=generation.stop is GenerationStop.LENGTH)
    note_ids = span_ids(tokenizer, decoded, own_ids, parsed.note)
    cap = agent.limits.max_note_tokens
    if note_ids is not None and cap is not None and len(note_ids) > cap:
        parsed, note_ids = parsed.without_note(agent.grammar.note_rule(index)), None
    note = parsed.note
    return Turn(
        index=index,
        prompt_ids=prompt_ids,
        generated_ids=generation.ids,
        logprobs=generation.logprobs,
        stop=generation.stop,
        parsed=parsed,
        forced_ids=forced_ids,
        note_span=decoded.tokens_of(note.start, note.end) if note else None,
        note_ids=note_ids,
        action_ids=span_ids(tokenizer, decoded, own_ids, parsed.action_element),
        temperature=temperature,
    )


def span_ids(
    tokenizer: Tokenizer, decoded: Decoded, own_ids: tuple[int, ...], element: Element | None
) -> tuple[int, ...] | None:
    """The ids of a tag pair in a rebuilt context: copied, unknown tokens and half letters too.

    A token that straddles an edge (`><`) gives way to ids of its part inside; one that only adds white space before the
    tag stays. Where no ids read the same, the whole pair is encoded from its text."""
    if element is None:
        return None
    start, end = element.start, element.end
    inside = [char for char in (decoded.edge_from(start), decoded.edge_to(end)) if char is not None]
    if len(inside) == 2 and start <= inside[0] < inside[1] <= end and (span := decoded.tokens_of(*inside)):
        first, stop = span
        before = tokenizer.part_ids(decoded.text[start : inside[0]])
        if before is None and first and not decoded.text[decoded.starts[first - 1] : start].strip():
            before = own_ids[first - 1 : first]
        after = tokenizer.part_ids(decoded.text[inside[1] : end])
        if before is not None and after is not None:
            return before + own_ids[first:stop] + after
    tags = opening(element.tag), closing(element.tag)
    return tokenizer.mixed_ids([(tags[0], True), (element.inner(decoded.text), False), (tags[1], True)])


async def answer_action(agent: Agent, tools: Mapping[str, Tool], parsed: ParsedTurn) -> ToolResult:
    """The tool's result, or a sentence that says what was wrong with the turn."""
    if parsed.action is not None and parsed.action.kind in tools:
        try:
            # No task of its own for the call: a tool that answers at once lets its rollout go on at once, not behind
            # all others that are ready, so that the next prompt is under way while those are still being read.
            async with asyncio.timeout(agent.limits.max_tool_s):
                result = await tools[parsed.action.kind].call(parsed.action.text)
            if not isinstance(result, ToolResult):
                raise TypeError(f"it returned a {type(result).__name__}, not a ToolResult")
            return result
        except Exception as error:  # a tool of the user's own that raises is a tool that is not available
            notice = f"error: the tool failed ({_told(error)})"
            return ToolResult(notice=notice, error=ToolErrorKind.UNAVAILABLE)
    return ToolResult(notice=_complaint(agent, tools, parsed), error=ToolErrorKind.BAD_CALL)


def _complaint(agent: Agent, tools: Mapping[str, Tool], parsed: ParsedTurn) -> str:
    # Tags are named without brackets: the notice must not look like a turn.
    actions = ", ".join(action for action in agent.grammar.actions if action == "answer" or action in tools)
    facts = {
        ParseOutcome.OK: f"there is no tool for {parsed.action.kind}" if parsed.action else "",
        ParseOutcome.NO_ACTION: "the turn had no action",
        ParseOutcome.TWO_ACTIONS: "the turn had more than one action, so none was carried out",
        ParseOutcome.EMPTY_ACTION: "the action was empty",
        ParseOutcome.ACTION_NOT_ALLOWED: "this action is not allowed here",
        ParseOutcome.UNCLOSED_TAG: "a tag was not closed",
        ParseOutcome.TRUNCATED: "the turn was cut off at its token limit",
    }
    return f"error: {facts[parsed.outcome]}; end a turn with exactly one of: {actions}"
