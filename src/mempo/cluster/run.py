"""What a process of a cluster run works with: the `mempo:` section of verl's configuration, made into objects once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mempo.config import Config
from mempo.engine.model import load_tokenizer, model_window
from mempo.envs.registry import make_environment
from mempo.rollout.agent import Agent, DecodingSettings
from mempo.rollout.interfaces import Environment
from mempo.rollout.tokenizer import Tokenizer
from mempo.setup import make_agent, make_scoring, make_tools, open_retriever
from mempo.storage.run_folder import RunFolder
from mempo.train.score_batch import Scoring


@dataclass(frozen=True)
class ClusterRun:
    """The agent, and how its rollouts are scored. `folder` must be the same on all machines."""

    config: Config
    folder: RunFolder
    tokenizer: Tokenizer
    agent: Agent
    environment: Environment | None
    scoring: Scoring

    @classmethod
    def of(cls, section: Mapping[str, Any], longest_row_tokens: int | None) -> ClusterRun:
        """From the plain data of `mempo:`. `longest_row_tokens`: the longest that verl's workers take; None: no limit
        but the model's window.

        Raises:
            UserError: a retrieval service that does not answer, a tokenizer that cannot be loaded, a contradiction.
        """
        config = Config.model_validate(section)
        folder = RunFolder(Path(config.output))
        assert config.model.path is not None  # the launcher refuses a run without a model
        tokenizer = load_tokenizer(config.model.path)
        environment = (
            make_environment(config.data.environment, config.data.environment_options)
            if config.data.environment
            else None
        )
        tools = make_tools(config, open_retriever(config, environment, folder.path / "data"))
        agent = make_agent(config, tokenizer, tools, environment)
        limits = [n for n in (longest_row_tokens, model_window(config.model.path)) if n is not None]
        scoring = make_scoring(config, agent, min(limits, default=None))
        return cls(config, folder, tokenizer, agent, environment, scoring)


def decoding_of(sampling_params: Mapping[str, Any]) -> DecodingSettings:
    """verl's sampling parameters (`top_k` -1: off) as ours (0: off)."""
    return DecodingSettings(
        temperature=float(sampling_params["temperature"]),
        top_p=float(sampling_params["top_p"]),
        top_k=max(int(sampling_params["top_k"]), 0),
    )
