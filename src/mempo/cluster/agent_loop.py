# pyright: reportMissingImports=false
"""verl's agent loop, handed to ours: one question goes in, the rows of one rollout come out."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register

from mempo.cluster.questions import AGENT, question_of
from mempo.cluster.rollout_queue import send_rollout
from mempo.cluster.rollouts import no_rows_because
from mempo.cluster.run import ClusterRun, decoding_of
from mempo.cluster.server_sampler import ServerSampler
from mempo.errors import UserError
from mempo.rewards.outcome import OutcomeScore
from mempo.rollout.agent import Job, rollout
from mempo.rollout.question import Question
from mempo.rollout.trajectory import Row, StopReason, Trajectory, rows_of

_runs: dict[str, ClusterRun] = {}


def run_of(config: DictConfig, longest_row_tokens: int | None = None) -> ClusterRun:
    """The objects of this process; made at the first call."""
    name = str(config.mempo.output)
    if name not in _runs:
        section: Any = OmegaConf.to_container(config.mempo, resolve=True)
        _runs[name] = ClusterRun.of(section, longest_row_tokens)
    return _runs[name]


class RolloutFailed(Exception):
    """A rollout that does not count. The trainer has it already; this is for verl, which logs it."""


@register(AGENT)
class MempoAgentLoop(AgentLoopBase):
    """One rollout. A row is an `AgentLoopOutput`; a rollout without a score does not count and has no rows."""

    def __init__(self, **given: Any) -> None:
        """verl chooses a builder of prompts by the model's family, which fails where the tokenizer is not as that
        family's. Prompts are ours, so the plain one does, and any tokenizer."""
        super().__init__(**{**given, "hf_model_type": None, "processor": None})

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> list[AgentLoopOutput]:  # type: ignore[override]
        run = run_of(self.config)
        question = question_of(kwargs["extra_info"]["question"])
        uid, session = str(kwargs["uid"]), int(kwargs["session_id"])
        sampler = ServerSampler(self.server_manager, run.tokenizer, f"{uid}_{session}")
        job = Job(question, session, (run.config.seed, uid))
        try:
            trajectory = await rollout(run.agent, sampler, job, decoding_of(sampling_params))
        except UserError as error:  # from the environment; raised here, it would be a line in a log and a rollout less
            trajectory = Trajectory(question.id, session, (), (), StopReason.TOOL_ERROR, error=str(error))
        await send_rollout(uid, session, int(kwargs["index"]), kwargs["extra_info"]["question"], trajectory)
        [outcome] = run.scoring.outcomes([question], [trajectory])
        if not outcome.counts:
            # verl then counts the group among the failed ones, which it samples as they are.
            raise RolloutFailed(no_rows_because(trajectory, outcome))
        return outputs_of(question, trajectory, outcome, sampler.versions)


def outputs_of(
    question: Question, trajectory: Trajectory, outcome: OutcomeScore, versions: list[int | None]
) -> list[AgentLoopOutput]:
    """A rollout as verl's rows, none where it does not count. The reward is for verl's own measures: the trainer makes
    the advantages."""
    if outcome.score is None:
        return []
    known = [version for version in versions if version is not None]
    extra: dict[str, Any] = {
        "min_global_steps": min(known, default=None),
        "max_global_steps": max(known, default=None),
        "reward_extra_info": _measures(trajectory, outcome),
    }
    logprobs = {turn.index: turn.logprobs for turn in trajectory.turns}
    return [_output(row, logprobs, len(trajectory.turns), outcome.score, dict(extra)) for row in rows_of(trajectory)]


def response_start(row: Row) -> int:
    """verl's response begins with the first generated token of a row; what came before is its prompt."""
    return row.segments[0].start


def _output(row: Row, logprobs: Any, turns: int, score: float, extra: dict[str, Any]) -> AgentLoopOutput:
    start = response_start(row)
    ones = {segment.turn: [1.0] * (segment.stop - segment.start) for segment in row.segments}
    return AgentLoopOutput(
        prompt_ids=list(row.ids[:start]),
        response_ids=list(row.ids[start:]),
        response_mask=[int(value) for value in row.spread(ones)[start:]],
        response_logprobs=row.spread(logprobs)[start:],
        reward_score=score,
        num_turns=turns,
        metrics=AgentLoopMetrics(),
        extra_fields=extra,
    )


def _measures(trajectory: Trajectory, outcome: OutcomeScore) -> dict[str, float]:
    """What verl averages in validation, by data source."""
    answer = outcome.answer
    return {
        **({} if answer is None else {"em": answer.em, "f1": answer.f1}),
        "format_ok": float(outcome.format_ok),
        "peak_context_tokens": float(trajectory.peak_context_tokens),
        "total_tokens": float(trajectory.total_tokens),
    }
