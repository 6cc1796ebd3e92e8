from __future__ import annotations
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Document:
    id: str
    title: str
    text: str
    url: str | None = None
