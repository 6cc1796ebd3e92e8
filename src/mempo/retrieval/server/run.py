"""`mempo serve`: one or several worker processes behind one socket, told to stop by SIGTERM or SIGINT."""

from __future__ import annotations

import ipaddress
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from mempo.config.retrieval import ServiceSettings
from mempo.errors import UserError
from mempo.retrieval.client import TOKEN, token_from_environment
from mempo.retrieval.corpus import Corpus
from mempo.retrieval.document import Retriever
from mempo.retrieval.index import open_index
from mempo.retrieval.index_folder import LEXICAL, read_sidecar
from mempo.retrieval.server.app import create_app
from mempo.retrieval.server.guard import GuardedProtocol
from mempo.retrieval.server.metrics import MULTIPROC_DIR
from mempo.storage.jsonl import is_blank, parse_object

_PLAN = "MEMPO_SERVE_PLAN"
_LEXICAL_BATCH = 8


def serve(
    index_dir: Path,
    host: str = "127.0.0.1",
    port: int = 8013,
    workers: int = 1,
    threads: int | None = None,
    settings: ServiceSettings | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Answer until told to stop; then take no more requests, answer those under way, and return.

    Each of `workers` processes maps the same index files, so text and index are in memory once. `threads`: of the
    numeric libraries, per worker; None shares out the cores. `port` 0 takes a free one.

    Raises:
        UserError: an index that cannot be opened, an address that cannot be listened on, an unusable token.
    """
    settings = for_index(settings or ServiceSettings(), read_sidecar(index_dir).kind)
    threads = threads or max((os.cpu_count() or 1) // workers, 1)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)  # what worker processes read when they start
    token = token_from_environment()
    pin_threads(threads)
    retriever = open_index(index_dir)
    with _listening(host, port) as listener:
        port = listener.getsockname()[1]
        say(f"serving {_describe(index_dir)} at {_address(host, port)} ({workers} worker{'s' if workers > 1 else ''})")
        if token is None and not is_loopback(host):
            say(f"warning: {host} can be reached from other machines and no token is asked for; set {TOKEN}")
        if workers == 1:
            # Once it has ended well, uvicorn passes the signal on to whoever handled it before.
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: None)
            app = _app(retriever, index_dir, settings, token)
            uvicorn.Server(uvicorn.Config(app, **_options(settings))).run(sockets=[listener])
            return
    plan = {"index": str(index_dir.absolute()), "threads": threads, "settings": settings.model_dump(mode="json")}
    with tempfile.TemporaryDirectory(prefix="mempo-metrics-") as folder:
        # The workers are new processes: they read these.
        os.environ.update({_PLAN: json.dumps(plan), MULTIPROC_DIR: folder})
        application = "mempo.retrieval.server.run:planned_app"
        uvicorn.run(application, factory=True, workers=workers, host=host, port=port, **_options(settings))


def planned_app() -> FastAPI:
    """The application of one of several workers, as `serve` planned it."""
    plan = json.loads(os.environ[_PLAN])
    pin_threads(plan["threads"])
    folder = Path(plan["index"])
    return _app(open_index(folder), folder, ServiceSettings(**plan["settings"]), token_from_environment())


def for_index(settings: ServiceSettings, kind: str) -> ServiceSettings:
    """The settings with what they leave open chosen for a kind of index."""
    if kind not in LEXICAL or "max_batch_queries" in settings.model_fields_set:
        return settings
    return settings.model_copy(update={"max_batch_queries": _LEXICAL_BATCH})


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def pin_threads(threads: int) -> None:
    """The numeric libraries that are loaded use so many threads; several servers on a machine otherwise fight."""
    faiss, torch = sys.modules.get("faiss"), sys.modules.get("torch")
    if faiss is not None:
        faiss.omp_set_num_threads(threads)
    if torch is not None:
        torch.set_num_threads(threads)


def has_titles(corpus: Corpus) -> bool:
    """Whether the rows of a corpus have the key `title`, by its first row."""
    with corpus.text_path.open("rb") as file:
        return "title" in parse_object(next(line for line in file if not is_blank(line)))


def _app(retriever: Retriever, index_dir: Path, settings: ServiceSettings, token: str | None) -> FastAPI:
    corpus = getattr(retriever, "corpus", None)
    titles = isinstance(corpus, Corpus) and has_titles(corpus)
    return create_app(retriever, settings, token, _about(index_dir), titles)


def _about(index_dir: Path) -> Mapping[str, Any]:
    side = read_sidecar(index_dir)
    return {
        "kind": side.kind,
        "documents": side.documents,
        "corpus_sha256": side.corpus_sha256,
        "parameters": dict(side.parameters),
    }


def _describe(index_dir: Path) -> str:
    side = read_sidecar(index_dir)
    return f"{side.documents} documents ({side.kind}) of {index_dir}"


def _address(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _options(settings: ServiceSettings) -> dict[str, Any]:
    return {
        "log_level": "warning",
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,
        "timeout_keep_alive": 75,  # longer than clients keep an idle connection: who closes first is not left to chance
        "timeout_graceful_shutdown": max(round(settings.drain_s), 1),
        "http": partial(GuardedProtocol, head_s=settings.body_timeout_s, most=settings.max_connections),
    }


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UserError(f"host {host!r} is not an address of this machine ({error})") from None
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            raise UserError(f"cannot listen on {host} port {port} ({error.strerror}); choose another --port") from None
        yield listener
