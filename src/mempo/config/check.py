"""What cannot work together, one small function a rule. Files are looked at when data are loaded, models last."""

from __future__ import annotations

from collections.abc import Callable

from mempo.config.evaluate import agent_specs
from mempo.config.schema import Config
from mempo.errors import ConfigError

RETRIEVAL = ("index", "server", "corpus")


def check(config: Config) -> None:
    """Refuse what cannot work together.

    Raises:
        ConfigError: the fact, the numbers, the remedy.
    """
    for rule in RULES:
        if message := rule(config):
            raise ConfigError(message)
    agent_specs(config.evaluate.agents, config.agent.notes, config.agent.first_note)  # raises for an unknown name


def toy_or_model(config: Config) -> str | None:
    if config.toy is not None and config.model.path:
        return f"both toy and model.path ({config.model.path}) are set; unset one (toy=null)"
    return None


def server_or_policy(config: Config) -> str | None:
    if config.server is not None and (config.toy is not None or config.model.path):
        other = "toy" if config.toy is not None else f"model.path ({config.model.path})"
        return f"both server and {other} are set; unset one"
    if config.server is not None and config.start:
        return f"both server and start ({config.start}) are set; unset one"
    return None


def start_in_this_process(config: Config) -> str | None:
    if config.cluster is not None and (config.start or config.rl.seed is not None):
        name, instead = ("start", "model.path") if config.start else ("rl.seed", "seed")
        return f"{name} belongs to training in this process; for a run under verl (cluster.*) set {instead}"
    return None


def toy_without_adapters(config: Config) -> str | None:
    if config.toy is not None and config.model.lora is not None:
        return "a toy policy learns from scratch, which takes all of its weights; set model.lora=null"
    return None


def toy_has_texts(config: Config) -> str | None:
    if config.toy is not None and config.data.environment is None and not config.data.train:
        return (
            "toy makes a policy for an environment or for files; set data.environment or data.train, or use model.path"
        )
    return None


def one_source_of_passages(config: Config) -> str | None:
    found = [name for name in RETRIEVAL if getattr(config.data, name)]
    if len(found) > 1:
        return f"data.{' and data.'.join(found)} are set; passages come from one of them"
    return None


def tools_have_something_to_search(config: Config) -> str | None:
    data, rl = config.data, config.rl
    sources = {"search": config.search.source, "access": config.access.source}
    if not any(sources.get(tool) == "corpus" for tool in config.agent.tools):
        return None
    if any(getattr(data, name) for name in RETRIEVAL):
        return None
    if data.environment == "maze":
        return "the maze has no documents to search; leave search and access out (agent.tools=[])"
    if data.environment is None and (rl.steps or data.train or data.test):
        return "the tools have nothing to search; set data.corpus, data.index, data.server or data.environment"
    return None


def react_has_no_notes(config: Config) -> str | None:
    if config.agent.context == "react" and config.agent.notes != "forbidden":
        return (
            f"agent.context react is a history without notes, but agent.notes is {config.agent.notes}; set "
            "agent.notes=forbidden, or agent.context=full for a history with notes"
        )
    return None


def forced_notes_are_allowed(config: Config) -> str | None:
    if config.agent.notes == "forbidden" and config.prompt.force_mem:
        return (
            "prompt.force_mem begins every turn from the second on with <mem>, but agent.notes is forbidden, so no "
            "such turn could keep the format; set prompt.force_mem=false, or agent.notes=required"
        )
    return None


def first_note_is_allowed(config: Config) -> str | None:
    if config.agent.notes == "forbidden" and config.agent.first_note == "required":
        return (
            "agent.first_note is required, but agent.notes is forbidden, which forbids notes in the first turn too; "
            "set agent.first_note=optional, or agent.notes=required"
        )
    return None


def notes_can_be_written(config: Config) -> str | None:
    agent, limits = config.agent, config.limits
    if limits.max_turns == 1 and agent.first_note == "forbidden" and agent.notes == "required":
        return (
            "agent.notes is required from the second turn on and agent.first_note is forbidden, but limits.max_turns "
            "is 1, so no note is ever written; set agent.notes=forbidden, or more turns"
        )
    return None


def rl_has_questions(config: Config) -> str | None:
    if config.rl.steps and config.data.environment is None and not config.data.train:
        return "rl.steps is set but there is nothing to train on; set data.train or data.environment"
    return None


def sft_has_questions(config: Config) -> str | None:
    if config.sft.steps and config.data.environment is None and not config.data.train:
        return "sft.steps is set but there is nothing to learn from; set data.environment or data.train, or sft.steps=0"
    return None


def answers_are_joined_as_they_are_split(config: Config) -> str | None:
    separator = config.reward.separator
    joiners = {"sft.expert.joiner": config.sft.expert.joiner, "memory.probe.joiner": config.memory.probe.joiner}
    for key, joiner in joiners.items():
        if joiner.strip() != separator.strip():
            return f"{key} is {joiner!r} but answers are split on reward.separator {separator!r}; make them agree"
    return None


def room_for_a_prompt(config: Config) -> str | None:
    limits = config.limits
    if limits.min_turn_tokens >= limits.max_context_tokens:
        return (
            f"limits.min_turn_tokens {limits.min_turn_tokens} leaves no room for a prompt in "
            f"limits.max_context_tokens {limits.max_context_tokens}"
        )
    return None


def each_tracker_once(config: Config) -> str | None:
    both = set(config.track).intersection(config.cluster.loggers if config.cluster else ())
    if both:
        return (
            f"track and cluster.loggers both name {min(both)}, which can have one run in a process; track sends the "
            "metrics of metrics.jsonl, cluster.loggers those of verl: take it out of one"
        )
    return None


Rule = Callable[[Config], str | None]
"""What is wrong, as a sentence, or None."""

RULES: dict[Rule, tuple[str, ...]] = {
    toy_or_model: ("toy", "model.path"),
    server_or_policy: ("server", "toy", "model.path", "start"),
    start_in_this_process: ("start", "rl.seed", "cluster"),
    toy_without_adapters: ("toy", "model.lora"),
    toy_has_texts: ("toy", "data.environment", "data.train"),
    one_source_of_passages: ("data.index", "data.server", "data.corpus"),
    tools_have_something_to_search: ("agent.tools", "data.corpus", "data.index", "data.server", "data.environment"),
    react_has_no_notes: ("agent.context", "agent.notes"),
    forced_notes_are_allowed: ("agent.notes", "prompt.force_mem"),
    first_note_is_allowed: ("agent.notes", "agent.first_note"),
    notes_can_be_written: ("agent.notes", "agent.first_note", "limits.max_turns"),
    rl_has_questions: ("rl.steps", "data.train", "data.environment"),
    sft_has_questions: ("sft.steps", "data.train", "data.environment"),
    answers_are_joined_as_they_are_split: ("reward.separator", "sft.expert.joiner", "memory.probe.joiner"),
    each_tracker_once: ("track", "cluster.loggers"),
    room_for_a_prompt: ("limits.min_turn_tokens", "limits.max_context_tokens"),
}
"""In the order in which they are asked, and the settings that each compares."""
