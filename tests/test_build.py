"""From a configuration to an agent: what cannot work together is refused there."""

from __future__ import annotations

import pytest

from mempo.build import make_agent
from mempo.config import resolve
from mempo.errors import ConfigError
from tests.tiny import chat_codec


def test_a_template_that_opens_the_thought_leaves_no_room_for_the_note() -> None:
    codec = chat_codec("opens_think")
    config = resolve("quickstart", ["prompt.template=chat", "prompt.system=be brief"]).config
    with pytest.raises(ConfigError, match=r"prompt\.force_mem=true"):
        make_agent(config, codec, {})
    for way_out in ("prompt.force_mem=true", "agent.notes=optional"):
        config = resolve("quickstart", ["prompt.template=chat", "prompt.system=be brief", way_out]).config
        assert make_agent(config, codec, {}).name == "memory"
