"""Who may read the pages, and what a page may do."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from mempo.errors import UserError
from mempo.view import serve as serving
from mempo.view.app import create_app
from mempo.view.folder import open_folders
from tests.view.build import make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("view") / "run")


PAGES = ("/", "/data.json", "/run/0/step-1/rollout/0", "/static/view.js", "/run/0/config")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8000", "[::1]:8000", "[::1]", "LOCALHOST:1"])
def test_this_machine_is_let_in(run: Path, host: str) -> None:
    client = TestClient(create_app(open_folders([run])))
    assert [client.get(page, headers={"host": host}).status_code for page in PAGES] == [200] * len(PAGES)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "", "[::2]", "::1"],
)
def test_a_foreign_name_is_not_whatever_it_resolves_to(run: Path, host: str) -> None:
    client = TestClient(create_app(open_folders([run])))
    for page in PAGES:
        answer = client.get(page, headers={"host": host})
        assert answer.status_code == 403
        assert "run" not in answer.text


def test_with_a_token_every_address_begins_with_it(run: Path) -> None:
    client = TestClient(create_app(open_folders([run]), token="s3cret"), base_url="http://10.0.0.7")
    for page in PAGES:
        assert client.get(page).status_code == 404
        assert client.get(f"/s3cre{page}").status_code == 404
        assert client.get(f"/s3cret{page}").status_code == 200
    assert 'href="/s3cret/run/0/step-1/"' in client.get("/s3cret/").text
    assert client.get("/sécret/").status_code == 404


@pytest.mark.parametrize("page", [*PAGES, "/nothing", "/run/0/step-1/rollout/9"])
def test_every_answer_carries_the_policy(run: Path, page: str) -> None:
    headers = TestClient(create_app(open_folders([run])), base_url="http://localhost").get(page).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"


def test_nothing_can_be_changed(run: Path) -> None:
    client = TestClient(create_app(open_folders([run])), base_url="http://localhost")
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert {client.request(method, page).status_code for page in PAGES} == {405}
    assert client.get("/openapi.json").status_code == client.get("/docs").status_code == 404


@pytest.mark.parametrize("path", ["/static/../app.py", "/static/%2e%2e%2fapp.py", "/run/0/..%2f..%2fconfig/"])
def test_no_other_file_is_served(run: Path, path: str) -> None:
    client = TestClient(create_app(open_folders([run])), base_url="http://localhost")
    assert client.get(path).status_code == 404


@pytest.mark.parametrize(("host", "secret"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_the_printed_address_has_a_token_where_others_can_reach_it(
    run: Path, host: str, secret: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(serving.uvicorn.Server, "run", lambda self, sockets: None)
    serving.serve([run], host, say=said.append)
    token = said[0].split("  ")[0].split("/")[3]
    assert len(token) >= 32 if secret else token == ""
    assert any("other machines" in line for line in said) is secret


def test_an_address_of_another_machine_is_refused(run: Path) -> None:
    with pytest.raises(UserError, match=r"cannot listen on 203.0.113.1 port 0"):
        serving.serve([run], "203.0.113.1", say=print)
