"""Everything that can be asked: one-hop, two-hop and inverse objectives, each checked against the documents.

An objective is one thing to find out. A question is one objective or several (`questions.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

from mempo.envs.atlas.documents import Rendering, card_key, card_query, document_id
from mempo.envs.atlas.facts import Entity, Fact, fold, stands_in
from mempo.envs.atlas.prose import tell
from mempo.envs.atlas.schema import ATTRIBUTES, Attribute, phrase
from mempo.envs.atlas.subset import EVERYTHING, Atlas, Subset, atlas

Form = Literal["one_hop", "two_hop", "inverse"]
FORMS: tuple[Form, ...] = ("one_hop", "two_hop", "inverse")


@dataclass(frozen=True, slots=True)
class Hop:
    """One step to the answer: search for `query`, read the fact of `owner`, find `finds`."""

    owner: Entity
    fact: Fact
    query: str
    finds: str

    @property
    def triple(self) -> tuple[str, str, str]:
        """(attribute, subject name, value)."""
        return (self.fact.attribute, self.owner.name, self.fact.value)


@dataclass(frozen=True, slots=True)
class Objective:
    """One thing to find out. `answers` holds every accepted wording, the first one preferred.

    `id` names the form, the entity asked about and the attributes: `two_hop/city/lyon/country/capital`.
    """

    id: str
    form: Form
    prose: str
    cards: str
    answers: tuple[str, ...]
    hops: tuple[Hop, ...]

    def text(self, rendering: Rendering) -> str:
        """The question: `What is the capital of France?` or, in the words of cards, `capital of France`."""
        return self.prose if rendering == "prose" else self.cards

    def documents(self, rendering: Rendering) -> tuple[str, ...]:
        """Ids of the documents that support the answer, in order of hops."""
        return tuple(document_id(hop.owner, hop.fact.attribute, rendering) for hop in self.hops)

    @property
    def path(self) -> tuple[str, ...]:
        """What kind of question it is, whoever it is about: form, kind, attributes."""
        return (self.form, self.hops[0].owner.kind, *(hop.fact.attribute for hop in self.hops))


@cache
def objectives(subset: Subset = EVERYTHING) -> tuple[Objective, ...]:
    """All objectives of a subset, in a fixed order: one-hop, two-hop, inverse."""
    environment = atlas(subset)
    folded = {entity.id: fold(f"{entity.name} {tell(entity)}") for entity in environment.entities}
    made = (*_one_hop(environment, folded), *_two_hop(environment, folded), *_inverse(environment))
    return tuple(o for o in made if not stands_in(fold(f"{o.prose} {o.cards}"), o.answers))


def _askable(entity: Entity) -> Iterator[tuple[Attribute, Fact]]:
    """The facts with one value and a question."""
    counts = Counter(fact.attribute for fact in entity.facts)
    for fact in entity.facts:
        attribute = ATTRIBUTES[entity.kind, fact.attribute]
        if attribute.question and counts[fact.attribute] == 1:
            yield attribute, fact


def _hop(owner: Entity, fact: Fact) -> Hop:
    return Hop(owner, fact, card_query(fact.attribute, owner.name), fact.value)


def _one_hop(environment: Atlas, folded: dict[str, str]) -> Iterator[Objective]:
    for entity in environment.entities:
        for attribute, fact in _askable(entity):
            if stands_in(folded[entity.id], (fact.value,)):
                yield Objective(
                    id=f"one_hop/{entity.id}/{attribute.name}",
                    form="one_hop",
                    prose=attribute.question.replace("{s}", phrase(entity.kind, entity.name)),
                    cards=card_query(attribute.name, entity.name),
                    answers=fact.answers,
                    hops=(_hop(entity, fact),),
                )


def _two_hop(environment: Atlas, folded: dict[str, str]) -> Iterator[Objective]:
    """Subject → bridge entity → value, where the subject's document names the bridge and is silent on the value."""
    for entity in environment.entities:
        for first, link in _askable(entity):
            bridge = environment.get(link.entity)
            if not first.bridge or bridge is None or not stands_in(folded[entity.id], (bridge.name,)):
                continue
            named = first.bridge.replace("{s}", phrase(entity.kind, entity.name))
            for second, fact in _askable(bridge):
                silent = not stands_in(folded[entity.id], fact.answers)
                if silent and stands_in(folded[bridge.id], (fact.value,)):
                    yield Objective(
                        id=f"two_hop/{entity.id}/{first.name}/{second.name}",
                        form="two_hop",
                        prose=second.question.replace("{s}", named),
                        cards=card_query(second.name, card_query(first.name, entity.name)),
                        answers=fact.answers,
                        hops=(_hop(entity, link), _hop(bridge, fact)),
                    )


def _inverse(environment: Atlas) -> Iterator[Objective]:
    """Whose value is it? Asked only when no other entity of the whole kind has that value."""
    owners = _owners()
    for entity in environment.entities:
        for attribute, fact in _askable(entity):
            if attribute.inverse and owners[entity.kind, attribute.name, fold(fact.value)] == 1:
                query = f"{fact.attribute} {fact.value}"
                yield Objective(
                    id=f"inverse/{entity.id}/{attribute.name}",
                    form="inverse",
                    prose=attribute.inverse.replace("{v}", fact.value),
                    cards=card_key(entity.kind, fact),
                    answers=entity.answers,
                    hops=(Hop(entity, fact, query, entity.name),),
                )


@cache
def _owners() -> Counter[tuple[str, str, str]]:
    """How many entities, of all of them, have a value or an alias: (kind, attribute, folded) → count."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for entity in atlas().entities:
        counts.update({(entity.kind, f.attribute, fold(answer)) for f in entity.facts for answer in f.answers})
    return counts
