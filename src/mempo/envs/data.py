"""What a run is about."""

from __future__ import annotations

from dataclasses import dataclass, field

from mempo.retrieval.document import Retriever
from mempo.rollout.interfaces import Environment
from mempo.rollout.question import Question


@dataclass(frozen=True)
class Data:
    """Questions, and where passages come from. `environment` is None for files of the user's own. `remarks`: what was
    left out of the files, a line each."""

    environment: Environment | None
    train: list[Question]
    test: list[Question]
    retriever: Retriever | None
    remarks: list[str] = field(default_factory=list)
