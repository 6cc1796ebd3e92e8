"""One configuration, composed of the settings of every stage."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from mempo.config.base import Settings
from mempo.config.cluster import ClusterSettings
from mempo.config.data import DataSettings
from mempo.config.engine import ModelSettings, SamplerSettings
from mempo.config.evaluate import EvalSettings
from mempo.config.rewards import MemorySettings, OutcomeSettings
from mempo.config.rollout import AgentSettings, LimitSettings, PromptSettings
from mempo.config.server import ServerSettings
from mempo.config.tools import AccessSettings, SearchSettings
from mempo.config.train import AdvantageSettings, RlSettings, SftSettings, ToySettings

Tracker = Literal["tensorboard", "wandb", "trackio", "mlflow"]


class Config(Settings):
    """All settings of a run, as nested attributes such as `config.rl.steps`; docs/settings.md lists them."""

    short_forms: ClassVar = {"reward": "score", "advantages": "function", "memory": "preset"}

    output: str = Field(default="runs/run", min_length=1)
    """The run folder."""
    seed: int = Field(default=0, ge=0)
    """Decides everything random: demonstrations, questions, noise, weights of a toy."""
    model: ModelSettings = ModelSettings()
    start: str | None = Field(default=None, min_length=1)
    """Begin RL from a trained policy: a run folder (the end of its SFT) or a model folder, such as a checkpoint of a
    run. SFT is skipped, whatever `sft.steps` says."""
    toy: ToySettings | None = None
    """A tiny policy made from scratch for the environment or the files, instead of a model of `model.path`."""
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
    advantages: AdvantageSettings = AdvantageSettings()
    """`advantages: package.module:function` alone is short for `advantages.function`."""
    sft: SftSettings = SftSettings()
    rl: RlSettings = RlSettings()
    sampler: SamplerSettings = SamplerSettings()
    evaluate: EvalSettings = EvalSettings()
    track: tuple[Tracker, ...] = ()
    """Trackers that get the metrics beside metrics.jsonl, local unless told otherwise (docs/trackers.md)."""
    server: ServerSettings | None = None
    """A model behind an OpenAI-compatible server to evaluate, instead of model.path or toy."""
    cluster: ClusterSettings | None = None
    """A run of verl on GPU nodes (`mempo cluster launch`, docs/cluster.md) instead of one in this process."""

    @field_validator("track", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return tuple(name.strip() for name in value.split(",")) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _length_limit_of_notes(self) -> Config:
        memory, limits = self.memory, self.limits
        if memory.length_penalty and memory.length_limit_tokens is None:
            limit = limits.max_note_tokens or limits.max_turn_tokens
            limited = memory.model_copy(update={"length_limit_tokens": limit})
            object.__setattr__(self, "memory", limited)  # frozen for everybody else
        return self
