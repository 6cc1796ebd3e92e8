"""Connections that are kept from one request to the next, and dropped when the server said anything in between."""

from __future__ import annotations

import select
from typing import Any

import aiohttp


class KeptConnections(aiohttp.TCPConnector):
    """aiohttp takes bytes that came on an idle connection for the reply to the next request; from then on, every reply
    is that to the request before. So a connection on which anything came is closed instead of used again."""

    async def _get(self, key: Any, traces: Any) -> Any:
        for protocol, _ in self._conns.get(key, ()):  # all of them: aiohttp passes over those that are too old
            if _spoke(protocol):
                protocol.close()
        return await super()._get(key, traces)


def _spoke(protocol: Any) -> bool:
    """Whether bytes, or the end of the stream, have come: read already, or still waiting at the socket."""
    if protocol.should_close or protocol.transport is None:
        return True
    if not hasattr(select, "poll"):  # Windows: only what was read already is seen
        return False
    waiting = select.poll()
    waiting.register(protocol.transport.get_extra_info("socket"), select.POLLIN)
    return bool(waiting.poll(0))
