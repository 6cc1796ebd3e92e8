"""A little web on loopback: sites by name, pages by path."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from mempo.tools.web_address import CONTROL_HOST, public_addresses


@dataclass
class Reply:
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    length: int | None = None
    """What the header announces; None: the truth."""


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class FakeWeb:
    def __init__(self, port: int) -> None:
        self.port = port
        self.pages: dict[str, Reply | Callable[[Request], Reply]] = {}
        self.requests: list[Request] = []
        self.stopping = threading.Event()
        self.is_online = True

    def url(self, path: str, host: str = "site.test") -> str:
        return f"http://{host}:{self.port}{path}"

    def resolve(self, host: str, port: int) -> Sequence[str]:
        """Names under .test are here, and the control host is known while there is a network; all others are asked for,
        and checked, as ever."""
        if host == CONTROL_HOST:
            if not self.is_online:
                raise OSError("the name service does not answer")
            return ["93.184.216.34"]
        return ["127.0.0.1"] if host.endswith(".test") else public_addresses(host, port)


@contextmanager
def fake_web() -> Iterator[FakeWeb]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            asked = Request(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
            web.requests.append(asked)
            page = web.pages.get(self.path, Reply(404, b"nothing here"))
            reply = page(asked) if callable(page) else page
            if reply.status == 0:  # hang
                web.stopping.wait(5)
                return
            self.send_response(reply.status)
            headers = {"content-type": "text/html; charset=utf-8", **reply.headers}
            headers["content-length"] = str(len(reply.body) if reply.length is None else reply.length)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply.body)

        do_GET = do_POST = answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.handle_error = lambda request, client_address: None  # clients may hang up
    web = FakeWeb(http.server_port)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield web
    finally:
        web.stopping.set()
        http.shutdown()
        http.server_close()
        thread.join()
