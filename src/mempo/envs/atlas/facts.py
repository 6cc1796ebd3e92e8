"""The shipped facts: entities and what is known of them, read once from `data/facts.jsonl.gz`."""

from __future__ import annotations

import gzip
import json
import re
import unicodedata
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import Any, get_args

from mempo.envs.atlas.schema import Kind
from mempo.errors import UserError

KINDS: tuple[Kind, ...] = get_args(Kind)


class AtlasError(UserError, ValueError):
    """A request that the atlas cannot meet, with the numbers and the remedy."""


@dataclass(frozen=True, slots=True)
class Fact:
    """`attribute` of its owner is `value`.

    `aliases` are other ways to write the value, `entity` is the id of the entity the value names (if it has a document
    of its own) and `original` is the source's wording where it differs: `Hungarian Forint` for `Forint`, `Prussia` for
    a birth country that is Poland today.
    """

    attribute: str
    value: str
    aliases: tuple[str, ...] = ()
    entity: str | None = None
    original: str | None = None

    @property
    def answers(self) -> tuple[str, ...]:
        """Every accepted wording, the value first."""
        return (self.value, *self.aliases)


@dataclass(frozen=True, slots=True)
class Entity:
    """A thing with a document of its own. `split_key` is hashed to put it in train or test (see `split.py`)."""

    id: str
    kind: Kind
    name: str
    aliases: tuple[str, ...]
    facts: tuple[Fact, ...]
    split_key: str

    @property
    def answers(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    def get(self, attribute: str) -> tuple[Fact, ...]:
        """The facts of this attribute, in order: none, one or several (neighbours, prizes)."""
        return tuple(fact for fact in self.facts if fact.attribute == attribute)

    def only(self, attribute: str) -> Fact | None:
        """The one fact of this attribute; None when there is none or when there are several."""
        found = self.get(attribute)
        return found[0] if len(found) == 1 else None


@cache
def load_entities() -> tuple[Entity, ...]:
    """All entities: countries, cities, elements, laureates, prizes; within a kind the best known first.

    Best known means: the largest population (countries, cities), the smallest atomic number, the latest prize.
    """
    packed = resources.files("mempo.envs.atlas").joinpath("data/facts.jsonl.gz").read_bytes()
    return tuple(_entity(json.loads(line)) for line in gzip.decompress(packed).decode().splitlines())


def _entity(row: dict[str, Any]) -> Entity:
    facts = tuple(
        Fact(f["attribute"], f["value"], tuple(f.get("aliases", ())), f.get("entity"), f.get("original"))
        for f in row["facts"]
    )
    return Entity(row["id"], row["kind"], row["name"], tuple(row["aliases"]), facts, row.get("split_with", row["id"]))


@lru_cache(maxsize=1 << 16)
def fold(text: str) -> str:
    """Text for comparison: lower case, no marks on letters, punctuation as spaces, one space before and after."""
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text)  # 66,987,244 and 66987244 are one number
    plain = text.casefold()
    if not plain.isascii():
        plain = "".join(c for c in unicodedata.normalize("NFKD", plain) if not unicodedata.combining(c))
    return " " + " ".join(re.findall(r"[^\W_]+", plain)) + " "


def stands_in(folded_text: str, answers: tuple[str, ...]) -> bool:
    """Whether one of the answers occurs as whole words in a text that `fold` returned."""
    return any(fold(answer) in folded_text for answer in answers)
