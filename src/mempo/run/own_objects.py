"""The objects of the user's own that a configuration names, loaded without a model."""

from __future__ import annotations

from collections.abc import Iterator

from mempo.config import Config
from mempo.config.base import is_import_path
from mempo.rollout.plugins import load_own
from mempo.run.trackers import check_trackers


def own_objects(config: Config) -> Iterator[tuple[str, str]]:
    """`(setting, import path)` of every object that the configuration would have imported later."""
    named = [
        ("data.environment", config.data.environment or ""),
        *(("agent.tools", tool) for tool in config.agent.tools),
        ("agent.context", config.agent.context),
        *(("agent.context", agent) for agent in config.evaluate.agents),
        ("reward", config.reward.score),
        ("advantages", config.advantages.function or ""),
        ("search.web.provider", config.search.web.provider if config.search.source == "web" else ""),
        ("access.web.reader", config.access.web.reader if config.access.source == "web" else ""),
    ]
    return (pair for pair in dict.fromkeys(named) if is_import_path(pair[1]))


def load_own_objects(config: Config) -> None:
    """Import all of them, so that a dry run finds what a run would.

    Raises:
        ConfigError: a module or name that is missing, or one that cannot be called as it will be; a tracker that is
            not installed.
    """
    for key, path in own_objects(config):
        load_own(path, key)
    check_trackers(config)
