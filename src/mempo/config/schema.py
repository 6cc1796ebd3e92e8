"""One configuration, composed of the settings of every stage."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, model_validator

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


class Config(Settings):
    """Everything a run depends on."""

    short_forms: ClassVar = {"reward": "score", "advantages": "function", "memory": "preset"}

    output: str = Field(default="runs/run", min_length=1)
    """The run folder."""
    seed: int = Field(default=0, ge=0)
    """Of everything that is drawn at random: demonstrations, questions, noise, weights of a toy."""
    model: ModelSettings = ModelSettings()
    start: str | None = Field(default=None, min_length=1)
    """Begin RL from a policy that was trained before: a run folder (where its SFT ended) or a model folder, such as a
    checkpoint of a run. SFT is skipped, whatever `sft.steps` says."""
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
    server: ServerSettings | None = None
    """A model behind an OpenAI-compatible server to evaluate, instead of model.path or toy."""
    cluster: ClusterSettings | None = None
    """A run of verl on GPU nodes (`mempo cluster launch`, docs/cluster.md) instead of one in this process."""

    @model_validator(mode="after")
    def _length_limit_of_notes(self) -> Config:
        memory, limits = self.memory, self.limits
        if memory.length_penalty and memory.length_limit_tokens is None:
            limit = limits.max_note_tokens or limits.max_turn_tokens
            limited = memory.model_copy(update={"length_limit_tokens": limit})
            object.__setattr__(self, "memory", limited)  # frozen for everybody else
        return self
