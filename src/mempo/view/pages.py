"""Templates and what they may use. Whatever comes from a run is escaped, and never stands in an attribute."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mempo.rollout.question import objectives_of
from mempo.view.text import one_line, visible

STATIC = ("view.css", "view.js")
_POLICY = "default-src 'none'; base-uri 'none'; form-action 'self'; connect-src 'self'; frame-ancestors 'none'"
POLICY = f"{_POLICY}; script-src 'self'; style-src 'self'"
"""The content security policy of served pages: nothing but the script and the style sheet beside them."""


@cache
def static(name: str) -> str:
    return (files("mempo.view") / "static" / name).read_text("utf-8")


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("mempo.view"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(visible=visible, one_line=one_line, number=number, gold=gold)
    return made


def number(value: float | None, form: str = ".3f") -> str:
    return "–" if value is None else format(value, form)


def gold(record: Mapping[str, Any]) -> str:
    """What would have been right: aliases of each objective, in its order."""
    try:
        return visible("; ".join(" / ".join(aliases) for aliases in objectives_of(record.get("gold")))) or "–"
    except (TypeError, LookupError):
        return "–"


def render(template: str, **context: Any) -> str:
    """A page that is served: `base` is what its addresses begin with."""
    return _environment().get_template(template).render(inline=None, **context)


def render_file(template: str, **context: Any) -> str:
    """A page that is one file: style and script stand in it, and its policy lets nothing else in, nor anything out."""
    css, script = (static(name) for name in STATIC)
    policy = (
        f"default-src 'none'; base-uri 'none'; form-action 'none'; style-src {_hash(css)}; script-src {_hash(script)}"
    )
    inline = {"policy": policy, "css": Markup(css), "script": Markup(script)}
    return _environment().get_template(template).render(inline=inline, base="", **context)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
