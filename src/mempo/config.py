"""One configuration, composed of every room's own settings.

Sources, later ones win: defaults, a recipe or YAML file, `key=value` from the command line. Every value remembers where
it came from; unknown keys are refused with the nearest known one; what cannot work is refused before any model loads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from mempo.agent import LimitSettings
from mempo.agent_rules import contradiction
from mempo.cluster_settings import ClusterSettings
from mempo.context import is_known_context
from mempo.credit import CreditSettings
from mempo.engine.model import ModelSettings
from mempo.engine.vllm_settings import SamplerSettings
from mempo.errors import ConfigError, nearest
from mempo.evaluate.agents import agent_specs
from mempo.evaluate.openai_settings import ServerSettings
from mempo.evaluate.runner import EvalSettings
from mempo.protocol import Presence
from mempo.render import PromptSettings
from mempo.retrieval.client_settings import ClientSettings
from mempo.rewards.memory_settings import CREDIT_KEYS, PRESETS, MemorySettings
from mempo.rewards.outcome import OutcomeSettings
from mempo.setting_errors import what_to_write
from mempo.settings import Settings, leaves
from mempo.tools.access import AccessSettings
from mempo.tools.search import SearchSettings
from mempo.train.rl import RlSettings
from mempo.train.sft import SftSettings
from mempo.train.toy import ToySettings
from mempo.yaml_numbers import load_yaml

RECIPES = files("mempo") / "recipes"


class DataSettings(Settings):
    """Questions and corpus: a world, or files of your own."""

    world: str | None = None
    """`atlas`, `maze`, or `package.module:factory` that returns a `World`; called with `world_options`."""
    world_options: dict[str, Any] = Field(default_factory=dict)
    train: str | None = None
    """A question file (see docs/data.md) to train on; only without a world, or with one to act in."""
    test: str | None = None
    """A question file to evaluate on; only without a world, or with one to act in."""
    corpus: str | None = None
    """A corpus file to build a BM25 index of; only without a world, an index or a server."""
    index: str | None = None
    """An index folder made by `mempo index`."""
    server: str | None = None
    """Address of a retrieval server, `http://host:port`; its token, where it asks for one, is read from the
    environment (MEMPO_RETRIEVAL_TOKEN)."""
    client: ClientSettings = ClientSettings()
    objectives: tuple[int, ...] = (1,)
    """Numbers of objectives in training questions, as many of each; batches draw from all of them."""
    test_objectives: tuple[int, ...] | None = None
    """Numbers of objectives in test questions; default: those of training."""
    train_questions: int = Field(default=2000, ge=1)
    """How many training questions are drawn from a world."""
    where: dict[str, Any] = Field(default_factory=dict)
    """Only questions whose rows say so, such as `{level: hard, type: [bridge, comparison]}`; of files only."""
    skip_bad: bool = False
    """Leave broken rows of question files out, and count them, instead of refusing the file."""

    @field_validator("objectives", "test_objectives", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        values = value if value is None or isinstance(value, list | tuple) else [value]
        if values is not None and (not values or any(type(k) is not int or k < 1 for k in values)):
            raise ValueError(f"numbers of objectives are whole numbers from 1, not {value!r}")
        return values


class AgentSettings(Settings):
    """Agent = context + grammar + prompt."""

    context: str = "memory"
    """`full`, `react`, `memory`, `last_turn`, `generations`, `window(k)`, or `package.module:factory`, called with the
    renderer."""
    notes: Presence = "required"
    """Whether turns from the second on hold a note; `forbidden` is an agent without memory (ReAct)."""
    first_note: Presence = "optional"
    tools: tuple[str, ...] = ("search", "access")
    """`search`, `access`, or `package.module:factory` of a tool of your own that answers one of these two tags."""

    @field_validator("context")
    @classmethod
    def _known_context(cls, value: str) -> str:
        if ":" not in value and not is_known_context(value):
            known = ("full", "react", "memory", "last_turn", "generations", "window(k)")
            raise ValueError(f"unknown context {value!r}{nearest(value, known)}; known: {', '.join(known)}")
        return value

    @field_validator("tools")
    @classmethod
    def _known_tools(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for tool in value:
            if ":" not in tool and tool not in ("search", "access"):
                raise ValueError(f"unknown tool {tool!r}{nearest(tool, ('search', 'access'))}; known: search, access")
        return value


class Config(Settings):
    """Everything a run depends on."""

    output: str = Field(default="runs/run", min_length=1)
    """The run folder."""
    seed: int = Field(default=0, ge=0)
    model: ModelSettings = ModelSettings()
    toy: ToySettings | None = None
    """A tiny policy made from scratch for the world, instead of a model of `model.path`."""
    data: DataSettings = DataSettings()
    prompt: PromptSettings = PromptSettings()
    agent: AgentSettings = AgentSettings()
    limits: LimitSettings = LimitSettings()
    search: SearchSettings = SearchSettings()
    access: AccessSettings = AccessSettings()
    reward: OutcomeSettings = OutcomeSettings()
    """`reward: package.module:function` alone is short for `reward.score`."""
    memory: MemorySettings = MemorySettings()
    """`memory: original` alone is short for `memory.preset`."""
    credit: CreditSettings = CreditSettings()
    """`credit: package.module:function` alone is short for `credit.function`."""
    sft: SftSettings = SftSettings()
    rl: RlSettings = RlSettings()
    sampler: SamplerSettings = SamplerSettings()
    evaluate: EvalSettings = EvalSettings()
    server: ServerSettings | None = None
    """A model behind an OpenAI-compatible server to evaluate, instead of model.path or toy."""
    cluster: ClusterSettings | None = None
    """A run of verl on GPU nodes (`mempo cluster launch`, docs/cluster.md) instead of one in this process."""

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: Any) -> Any:
        return _long_form(data) if isinstance(data, Mapping) else data

    @model_validator(mode="after")
    def _length_limit_of_notes(self) -> Config:
        memory, limits = self.memory, self.limits
        if memory.length_penalty and memory.length_limit_tokens is None:
            limit = limits.max_note_tokens or limits.max_turn_tokens
            limited = memory.model_copy(update={"length_limit_tokens": limit})
            object.__setattr__(self, "memory", limited)  # frozen for everybody else
        return self


@dataclass(frozen=True)
class Resolved:
    """A configuration, and for every leaf (dotted key) where its value came from."""

    config: Config
    origins: Mapping[str, str]

    def plain(self) -> dict[str, Any]:
        """As plain data, ready for YAML or JSON."""
        return self.config.model_dump(mode="json")


def completed(saved: Mapping[str, Any]) -> Mapping[str, Any]:
    """The plain data of a configuration that an earlier release may have written: settings that it did not have are at
    their defaults. What this release cannot read, or none has written, comes back as it is."""
    if not isinstance(saved, Mapping) or not {"output", "seed", "model", "data", "agent", "limits"} <= saved.keys():
        return saved
    try:
        return Config.model_validate(saved).model_dump(mode="json")
    except (ValidationError, TypeError):
        return saved


def recipe_names() -> list[str]:
    return sorted(entry.name.removesuffix(".yaml") for entry in RECIPES.iterdir() if entry.name.endswith(".yaml"))


def resolve(source: str | None, overrides: Sequence[str] = ()) -> Resolved:
    """Compose a configuration from a recipe name or YAML file (None: defaults alone) and `key=value` overrides.

    Raises:
        ConfigError: a file or key that does not exist, a value of the wrong kind, settings that contradict each other.
    """
    layers: list[tuple[str, dict[str, Any]]] = []
    if source is not None:
        layers.append(_read_source(source))
    for override in overrides:
        layers.append(("command line", _parse_override(override)))
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    layers = [(origin, _long_form(layer)) for origin, layer in layers]
    for origin, layer in layers:
        _merge(merged, layer)
        for key, _ in leaves(layer):
            origins = {k: v for k, v in origins.items() if not k.startswith(f"{key}.")}
            origins[key] = origin
    try:
        config = Config.model_validate(merged)
    except ValidationError as error:
        raise ConfigError(_explain(error, layers)) from error
    check(config)
    every = dict.fromkeys((key for key, _ in leaves(config.model_dump(mode="json"))), "default")
    preset = config.memory.preset
    every.update({f"memory.{key}": f"preset {preset}" for key, _ in leaves(PRESETS[preset])})
    every.update({key: origin for key in every if (origin := _origin(key, origins))})
    return Resolved(config, every)


def check(config: Config) -> None:
    """Refuse what cannot work together. Files are looked at when data are loaded, models last.

    Raises:
        ConfigError: the fact, the numbers, the remedy.
    """
    data, rl, sft = config.data, config.rl, config.sft
    if config.toy is not None and config.model.path:
        raise ConfigError(f"both toy and model.path ({config.model.path}) are set; unset one (toy=null)")
    if config.server is not None and (config.toy is not None or config.model.path):
        other = "toy" if config.toy is not None else f"model.path ({config.model.path})"
        raise ConfigError(f"both server and {other} are set; unset one")
    if data.where and not (data.train or data.test):
        raise ConfigError("data.where chooses among the questions of a file, but data.train and data.test are not set")
    if config.toy is not None and config.model.lora is not None:
        raise ConfigError("a toy policy learns from scratch, which takes all of its weights; set model.lora=null")
    if config.toy is not None and data.world is None:
        raise ConfigError("toy makes a policy for a world; set data.world, or use model.path")
    if data.world is not None:
        # An environment plays the questions of a file too; whether an own world is one shows when it is made.
        idle = [name for name in ("train", "test", "corpus") if getattr(data, name)]
        idle = [name for name in idle if name == "corpus" or data.world == "atlas"]
        if idle:
            raise ConfigError(f"data.world is set, so data.{idle[0]} would be ignored; unset one (data.world=null)")
    elif data.world_options:
        raise ConfigError("data.world_options are set without data.world; clear them (data.world_options={})")
    elif data.train_questions != DataSettings.model_fields["train_questions"].default:
        raise ConfigError(
            f"data.train_questions is {data.train_questions}, questions drawn from a world, but data.world is "
            "not set; a question file is used whole"
        )
    retrieval = [name for name in ("index", "server", "corpus") if getattr(data, name)]
    if len(retrieval) > 1:
        raise ConfigError(f"data.{' and data.'.join(retrieval)} are set; passages come from one of them")
    sources = {"search": config.search.source, "access": config.access.source}
    uses_builtin = any(sources.get(tool) == "corpus" for tool in config.agent.tools)
    if data.world == "maze" and uses_builtin and not retrieval:
        raise ConfigError("the maze has no documents to search; leave search and access out (agent.tools=[])")
    if not retrieval and data.world is None and uses_builtin and (rl.steps or data.train or data.test):
        raise ConfigError("the tools have nothing to search; set data.corpus, data.index, data.server or data.world")
    if rl.steps and rl.memory_signal and config.agent.notes == "forbidden":
        raise ConfigError("agent.notes is forbidden, so rl.memory_signal would do nothing; set rl.memory_signal=false")
    _refuse_idle_signal(config)
    if config.prompt.short_results and config.agent.context in ("memory", "last_turn", "generations", "window(1)"):
        raise ConfigError(
            f"agent.context {config.agent.context} shows the last tool result alone, so prompt.short_results would do "
            "nothing; set prompt.short_results=false, or a context that keeps old results (full, react, window(k))"
        )
    if config.agent.context == "react" and config.agent.notes != "forbidden":
        raise ConfigError(
            f"agent.context react is a history without notes, but agent.notes is {config.agent.notes}; set "
            "agent.notes=forbidden, or agent.context=full for a history with notes"
        )
    if rl.steps and data.world is None and not data.train:
        raise ConfigError("rl.steps is set but there is nothing to train on; set data.train or data.world")
    if sft.steps and data.world is None and not data.train:
        raise ConfigError(
            "sft.steps is set but there is nothing to learn from; set data.world or data.train, or sft.steps=0"
        )
    agent_specs(config.evaluate.agents, config.agent.notes, config.agent.first_note)  # raises for an unknown name
    _check_agent(config)
    separator = config.reward.separator
    for key, joiner in (("sft.expert.joiner", sft.expert.joiner), ("memory.probe.joiner", config.memory.probe.joiner)):
        if joiner.strip() != separator.strip():
            raise ConfigError(
                f"{key} is {joiner!r} but answers are split on reward.separator {separator!r}; make them agree"
            )
    limits = config.limits
    if limits.min_turn_tokens >= limits.max_context_tokens:
        raise ConfigError(
            f"limits.min_turn_tokens {limits.min_turn_tokens} leaves no room for a prompt in "
            f"limits.max_context_tokens {limits.max_context_tokens}"
        )


def _check_agent(config: Config) -> None:
    agent, limits = config.agent, config.limits
    found = contradiction(
        agent.notes,
        agent.first_note,
        force_mem=config.prompt.force_mem,
        max_turns=limits.max_turns,
        max_turn_tokens=limits.max_turn_tokens,
        max_note_tokens=limits.max_note_tokens,
    )
    if found:
        raise ConfigError(found)


def _refuse_idle_signal(config: Config) -> None:
    """Settings of memory credit beside an own function that takes their place. With `rl.memory_signal` off they may
    stay: so a run is compared with one on the outcome alone by a single switch."""
    memory = config.memory
    if config.credit.function and (idle := memory.beside_preset(CREDIT_KEYS)):
        raise ConfigError(
            f"credit.function is {config.credit.function}, so memory.{idle[0]} would do nothing; unset one of the two"
        )


# --- sources -------------------------------------------------------------------------------------------------------


def _read_source(source: str) -> tuple[str, dict[str, Any]]:
    path = Path(source)
    if source in recipe_names():
        return f"recipe {source}", load_yaml(RECIPES.joinpath(f"{source}.yaml").read_text("utf-8"), f"recipe {source}")
    if path.is_file():
        return str(path), load_yaml(_text_of(path), str(path))
    if path.is_dir() and (path / "config.yaml").is_file():
        return f"run {path}", load_yaml((path / "config.yaml").read_text("utf-8"), str(path / "config.yaml"))
    names = recipe_names()
    raise ConfigError(f"no recipe or file {source!r}{nearest(source, names)}; recipes: {', '.join(names)}")


def _text_of(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as text ({error})") from error


def _parse_override(text: str) -> dict[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"{text!r} is not an override; write key=value, for example rl.steps=20")
    # A value like `my_module:score` or `window(3)` is a string to YAML already; what is no YAML at all is one too.
    try:
        parsed: Any = load_yaml(f"value: {value}", key)["value"] if value.strip() else ""
    except ConfigError:
        parsed = value
    for part in reversed(key.strip().split(".")):
        parsed = {part: parsed}
    return parsed


def _merge(base: dict[str, Any], layer: Mapping[str, Any]) -> None:
    for key, value in layer.items():
        if isinstance(value, Mapping) and value and isinstance(base.get(key), dict):  # an empty one clears the key
            _merge(base[key], value)
        else:
            base[key] = _copy(value)


def _long_form(layer: Mapping[str, Any]) -> dict[str, Any]:
    """`reward: module:function` written out, so that it meets the other keys of `reward` and replaces none of them."""
    short = {"reward": "score", "credit": "function", "memory": "preset"}
    return {
        key: {short[key]: value} if key in short and isinstance(value, str) else value for key, value in layer.items()
    }


def _copy(value: Any) -> Any:
    return {key: _copy(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def _origin(key: str, origins: Mapping[str, str]) -> str | None:
    """The origin of a key, or of a shorter key that stood for it (`reward: module:function`)."""
    parts = key.split(".")
    return next((origins[name] for n in range(len(parts), 0, -1) if (name := ".".join(parts[:n])) in origins), None)


def _explain(error: ValidationError, layers: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    lines = []
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"])
        message = what_to_write(problem["type"], key, problem.get("input"))
        message = message or problem["msg"].removeprefix("Value error, ")
        given = "" if isinstance(problem.get("input"), Mapping) else f" (given: {problem.get('input')!r})"
        where = next((origin for origin, layer in reversed(layers) if _has(layer, key)), "")
        lines.append(f"{key or 'configuration'}: {message}{given}" + (f" [{where}]" if where else ""))
    return "; ".join(dict.fromkeys(lines))


def _has(layer: Any, key: str) -> bool:
    for part in key.split("."):
        if not isinstance(layer, Mapping) or part not in layer:
            return False
        layer = layer[part]
    return True


def dump_with_origins(resolved: Resolved) -> str:
    """YAML with a comment on every leaf: where its value came from."""
    lines: list[str] = []

    def walk(data: Mapping[str, Any], prefix: str, indent: int) -> None:
        for key, value in data.items():
            name = f"{prefix}{key}"
            if isinstance(value, Mapping) and value:
                lines.append(f"{'  ' * indent}{key}:")
                walk(value, f"{name}.", indent + 1)
            else:
                text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10_000)
                shown = text.removesuffix("\n").removesuffix("\n...")
                lines.append(f"{'  ' * indent}{key}: {shown}  # {resolved.origins.get(name, 'default')}")

    walk(resolved.plain(), "", 0)
    return "\n".join(lines) + "\n"
