"""The environment as a corpus, in two renderings.

`prose` is one document per entity, a few sentences that state all its facts, made for real language models. `cards` is
one document per fact, one short line, made for a toy policy with a small vocabulary:

    capital of France: Paris
"""

from __future__ import annotations

from functools import cache
from typing import Literal, get_args

from mempo.envs.atlas.facts import AtlasError, Entity, Fact
from mempo.envs.atlas.prose import tell
from mempo.envs.atlas.schema import ATTRIBUTES
from mempo.envs.atlas.subset import EVERYTHING, Subset, atlas
from mempo.retrieval.corpus import Document

Rendering = Literal["prose", "cards"]


def check_rendering(rendering: str) -> None:
    """Raises AtlasError for anything but `prose` and `cards`."""
    if rendering not in get_args(Rendering):
        raise AtlasError(f"the atlas has no rendering {rendering!r}; choose prose or cards")


@cache
def documents(rendering: Rendering = "prose", subset: Subset = EVERYTHING) -> tuple[Document, ...]:
    """All documents of a subset, in the order of its entities."""
    check_rendering(rendering)
    made = prose_document if rendering == "prose" else card_documents
    found: list[Document] = []
    for entity in atlas(subset).entities:
        result = made(entity)
        found += result if isinstance(result, tuple) else (result,)
    return tuple(found)


def prose_document(entity: Entity) -> Document:
    return Document(id=entity.id, title=entity.name, text=tell(entity), url=f"atlas://{entity.id}")


def card_documents(entity: Entity) -> tuple[Document, ...]:
    """A card for each fact that can be asked for; several values of one attribute share a card."""
    cards: list[Document] = []
    for attribute in dict.fromkeys(fact.attribute for fact in entity.facts):
        if ATTRIBUTES[entity.kind, attribute].question:
            identity = document_id(entity, attribute, "cards")
            values = ", ".join(fact.value for fact in entity.get(attribute))
            text = f"{card_query(attribute, entity.name)}: {values}"
            cards.append(Document(id=identity, title=entity.name, text=text, url=f"atlas://{identity}"))
    return tuple(cards)


def document_id(entity: Entity, attribute: str, rendering: Rendering) -> str:
    """The document that states a fact: `country/france`, or `country/france#capital` among cards."""
    return entity.id if rendering == "prose" else f"{entity.id}#{attribute.replace(' ', '-')}"


def card_query(attribute: str, name: str) -> str:
    """How cards, and questions in the words of cards, name a fact: `capital of France`."""
    return f"{attribute} of {name}"


def card_key(kind: str, fact: Fact) -> str:
    """How questions in the words of cards name an entity by one of its facts: `country with currency Forint`."""
    return f"{kind} with {fact.attribute} {fact.value}"
