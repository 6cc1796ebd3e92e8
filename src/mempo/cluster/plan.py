"""`mempo cluster plan`: does a run fit, how many tokens has a step, where does its time go, how fast does it search."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mempo.cluster.model_shape import DecoderShape, shape_of
from mempo.cluster.plan_memory import GB, Memory, memory_of, refuse_unless_fits
from mempo.cluster.plan_time import Times, times_of
from mempo.cluster.plan_tokens import StepTokens, step_tokens
from mempo.config.plan import PlanSettings


@dataclass(frozen=True)
class Service:
    """The retrieval service: queries a second in the mean of the rollout phase, and replicas for the worst of it, None
    where the speed of one is not known."""

    queries_per_s: float
    replicas: int | None


@dataclass(frozen=True)
class Plan:
    settings: PlanSettings
    shape: DecoderShape
    tokens: StepTokens
    memory: Memory
    times: Times
    service: Service


def make_plan(s: PlanSettings) -> Plan:
    """The plan of a run that fits.

    Raises:
        UserError: an unknown model, or the first thing that does not fit, with its sum and a value that works.
    """
    shape, tokens = shape_of(s.model), step_tokens(s)
    refuse_unless_fits(s, shape, tokens)
    memory = memory_of(s, shape, tokens)
    times = times_of(s, shape, tokens, memory)
    queries_per_s = tokens.searches / times.rollout_s
    speed = s.replica_queries_per_s
    service = Service(queries_per_s, None if speed is None else math.ceil(s.burst * queries_per_s / speed))
    return Plan(s, shape, tokens, memory, times, service)


# --- what is printed -----------------------------------------------------------------------------------------------


def as_json(plan: Plan) -> dict[str, Any]:
    """Everything in the plan, sums too; bytes, seconds, tokens."""
    memory = asdict(plan.memory)
    memory["update"]["total"] = plan.memory.update.total
    memory["rollout"]["total"] = plan.memory.rollout.total
    return {
        "settings": plan.settings.model_dump(mode="json"),
        "parameters": plan.shape.parameters,
        "tokens": asdict(plan.tokens),
        "memory": memory,
        "times": asdict(plan.times) | {"total_s": plan.times.total_s},
        "service": asdict(plan.service),
    }


def plan_tables(plan: Plan) -> RenderableType:
    return Group(_memory_table(plan), _tokens_table(plan), _times_table(plan), _service_table(plan))


def _memory_table(plan: Plan) -> RenderableType:
    s, update, rollout = plan.settings, plan.memory.update, plan.memory.rollout
    title = f"GB on each of {s.gpus} GPUs of {s.gpu_memory_gb:g}"
    table = _table("", "rollouts", "update")
    lines: list[tuple[str, float | None, float | None]] = [
        ("weights", rollout.weights, update.weights),
        ("gradients", None, update.gradients),
        ("optimizer", rollout.optimizer, update.optimizer),
        ("layers put together", None, update.gathered),
        (f"activations, {s.micro_batch_tokens} tokens", None, update.activations),
        ("logits", None, update.logits),
        (f"{s.engine}: weights", rollout.server_weights, None),
        (f"{s.engine}: keys and values", rollout.kv_cache, None),
        (f"{s.engine}: the rest", rollout.server_overhead, None),
        ("kept free", rollout.reserve, update.reserve),
    ]
    for name, first, second in lines:
        table.add_row(name, _gb(first), _gb(second))
    table.add_section()
    table.add_row("sum", _gb(rollout.total), _gb(update.total))
    table.add_row("main memory of a node", _gb(plan.memory.host), "")
    return Group(Text(title), table)


def _tokens_table(plan: Plan) -> RenderableType:
    s, tokens = plan.settings, plan.tokens
    title = f"a step: {s.questions} questions, {s.rollouts} rollouts each, {s.turns} turns, context {s.agent_context}"
    table = _table("", "rows", "tokens")
    table.add_row("generated", "", f"{tokens.generated:,}")
    table.add_row("prefilled without a prefix cache", "", f"{tokens.prefilled:,}")
    table.add_row("prefilled with one", "", f"{tokens.prefilled_cached:,}")
    table.add_row("trained, prompts included", f"{tokens.rows:,}", f"{tokens.trained:,}")
    table.add_row("padding of mini-batches", f"{tokens.padding_rows:,}", "")
    table.add_row(f"memory signal, baseline {s.baseline}", f"{tokens.probe_rows:,}", f"{tokens.probes:,}")
    table.add_row("largest step", "", f"{tokens.longest_context:,}")
    return Group(Text(title), table)


def _times_table(plan: Plan) -> RenderableType:
    times = plan.times
    title = f"seconds of a step ({times.at_once} rollouts at once on a server, {times.waves} after another)"
    table = _table("", "10^15 operations", "seconds", "share")
    for stage in times.stages:
        share = f"{stage.seconds / times.total_s:.0%}"
        table.add_row(stage.name, f"{stage.operations / 1e15:,.1f}", f"{stage.seconds:,.1f}", share)
    table.add_section()
    table.add_row("sum", "", f"{times.total_s:,.1f}", "")
    return Group(Text(title), table)


def _service_table(plan: Plan) -> RenderableType:
    service = plan.service
    table = _table("", "")
    table.add_row("queries of a step", f"{plan.tokens.searches:,}")
    table.add_row("queries a second, mean", f"{service.queries_per_s:,.1f}")
    known = "measure one with bench/retrieval.py" if service.replicas is None else str(service.replicas)
    table.add_row(f"replicas for bursts of {plan.settings.burst:g} times the mean", known)
    return Group(Text("retrieval"), table)


def _table(*columns: str) -> Table:
    table = Table(show_header=len(columns) > 2)
    for name in columns:
        table.add_column(name, justify="right" if name or table.columns else "left")
    return table


def _gb(count: float | None) -> str:
    return "" if count is None else f"{count / GB:,.1f}"
