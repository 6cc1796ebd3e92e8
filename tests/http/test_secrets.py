"""A secret is found however common software writes it, and nothing else is touched."""

from __future__ import annotations

import base64
import html
import json
import random
import string
import time
from urllib.parse import quote, quote_plus

import pytest

from mempo.errors import UserError
from mempo.http.secrets import HIDDEN, Redactor, key_of

KEY = "sk-Se/cret+0~9&<\"=_x'"


def percent(text: str) -> str:
    return "".join(f"%{ord(char):02x}" for char in text)


def escaped(text: str) -> str:
    return "".join(f"\\u{ord(char):04X}" for char in text)


FORMS = {
    "plain": KEY,
    "header": f"Authorization: Bearer {KEY}",
    "json": json.dumps({"token": KEY}),
    "json in json": json.dumps(json.dumps({"token": KEY})),
    "json, slashes": json.dumps(KEY).replace("/", "\\/"),
    "json, all": escaped(KEY),
    "json, for html": json.dumps(KEY).replace("<", "\\u003c").replace("&", "\\u0026").replace("'", "\\u0027"),
    "url": quote(KEY, safe=""),
    "form": quote_plus(KEY),
    "url in url": quote(quote(KEY, safe=""), safe=""),
    "url, all": percent(KEY),
    "url, small letters": quote(KEY, safe="").lower() if KEY.islower() else percent(KEY).upper(),
    "html": html.escape(KEY),
    "html, by number": "".join(f"&#{ord(char)};" for char in KEY),
    "html, hexadecimal": "".join(f"&#x{ord(char):X};" for char in KEY),
    "hexadecimal": KEY.encode().hex(),
    "HEXADECIMAL": KEY.encode().hex().upper(),
    **{f"base64, {n} before": base64.b64encode(b"u" * n + KEY.encode() + b"!" * (n % 2)).decode() for n in range(4)},
    **{f"base64 of urls, {n}": base64.urlsafe_b64encode(b"u" * n + KEY.encode()).decode() for n in range(3)},
    "basic": "Basic " + base64.b64encode(f"user:{KEY}".encode()).decode(),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_way_to_write_a_secret(form: str) -> None:
    found = Redactor(KEY).body(f"before {FORMS[form]} after".encode()).decode()
    assert HIDDEN in found
    assert found.startswith("before ")
    assert found.endswith(" after")
    for n in range(len(KEY) - 8):
        assert KEY[n : n + 8] not in found


def test_a_reply_stays_json() -> None:
    body = json.dumps({"result": [{"contents": f"the token is {KEY}", "score": 0.5}]}).encode()
    assert json.loads(Redactor(KEY).body(body)) == {"result": [{"contents": f"the token is {HIDDEN}", "score": 0.5}]}
    numbers = b'{"score": 0.12345678901, "id": 9123456789}'
    assert Redactor("12345678").body(numbers) == numbers, "a part of a number is no token"
    assert Redactor("12345678").body(b"Bearer 12345678") == f"Bearer {HIDDEN}".encode()


@pytest.mark.parametrize("secret", [None, "", "x", "abc", "EMPTY", "none", "dummy", "ollama"])
def test_what_is_no_secret_takes_nothing_out(secret: str | None) -> None:
    text = b"x marks the EMPTY box; none of the dummy abc, says ollama"
    assert Redactor(secret).body(text) == text


def test_other_keys_stand_behind_bearer_only_in_errors() -> None:
    text = b"Authorization: Bearer other-key-9, the ring bearer Frodo"
    assert Redactor(KEY).body(text) == text
    assert Redactor(None).message(b'bearer abc"') == f'bearer {HIDDEN}"'.encode()


def test_ordinary_text_is_left_alone() -> None:
    rng = random.Random(0)
    for length in (4, 6, 12, 40):
        secret = "".join(rng.choices(string.ascii_letters + string.digits, k=length))
        text = "".join(rng.choices(string.printable, k=200_000)).replace(secret, "").encode()
        assert Redactor(secret).body(text) == text


@pytest.mark.parametrize("text", ["\\" * 300_000, "%25" * 100_000, "&#" + "0" * 300_000, "s" * 300_000, "%" * 300_000])
def test_no_reply_takes_long(text: str) -> None:
    began = time.perf_counter()
    Redactor(KEY).body(text.encode())
    assert time.perf_counter() - began < 2


def test_a_key_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, read in (("", None), ("  ", None), (" abc ", "abc")):
        monkeypatch.setenv("A_KEY", value)
        assert key_of("A_KEY") == read
    for value in ("a b", "a\nb", "schlüssel"):
        monkeypatch.setenv("A_KEY", value)
        with pytest.raises(UserError, match="A_KEY holds characters"):
            key_of("A_KEY")
