"""A part of the atlas, chosen by plain rules: the same rules give the same part everywhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import zip_longest
from types import MappingProxyType

from mempo.envs.atlas.facts import KINDS, AtlasError, Entity, load_entities
from mempo.envs.atlas.schema import ATTRIBUTE_NAMES, ATTRIBUTES, Kind
from mempo.errors import nearest


@dataclass(frozen=True, slots=True)
class Subset:
    """Which entities and facts the environment holds; the default is all of them.

    `max_entities` takes the best known of each kind in turn. `max_words` and `max_letters` bound names and values
    (words in each, letters in a word), `ascii_only` leaves out those with other letters: together they keep the
    vocabulary of a toy policy small. A name that breaks them takes its entity out, a value its fact.
    """

    kinds: tuple[Kind, ...] = KINDS
    attributes: tuple[str, ...] | None = None
    max_entities: int | None = None
    max_words: int | None = None
    max_letters: int | None = None
    ascii_only: bool = False

    def __post_init__(self) -> None:
        """Raises AtlasError for an unknown kind or attribute and for limits below 1."""
        for given, known, what in (
            (self.kinds, frozenset[str](KINDS), "kind"),
            (self.attributes or (), ATTRIBUTE_NAMES, "attribute"),
        ):
            if isinstance(given, str):
                raise AtlasError(f"{what}s is a tuple of names, not the string {given!r}: write ({given!r},)")
            for name in given:
                if name not in known:
                    raise AtlasError(
                        f"the atlas has no {what} {name!r}{nearest(name, known)}; it has {', '.join(sorted(known))}"
                    )
        for name in ("max_entities", "max_words", "max_letters"):
            limit = getattr(self, name)
            if limit is not None and limit < 1:
                raise AtlasError(f"{name} is {limit}; it must be at least 1, or None for no limit")

    def allows(self, text: str) -> bool:
        """Whether a name or value keeps the limits on words."""
        words = text.split()
        return (
            (self.max_words is None or len(words) <= self.max_words)
            and (self.max_letters is None or max(map(len, words)) <= self.max_letters)
            and (not self.ascii_only or text.isascii())
        )


EVERYTHING = Subset()

# A few hundred names of one word each: a tiny policy with a vocabulary of some thousand words can learn to copy them.
TOY = Subset(
    kinds=("country", "element"),
    attributes=("capital", "currency", "demonym", "symbol", "atomic number", "discovery year"),
    max_entities=200,
    max_words=1,
    max_letters=12,
    ascii_only=True,
)


@dataclass(frozen=True)
class Atlas:
    """The entities of a subset, each with the facts the subset keeps, in the order of the data."""

    entities: tuple[Entity, ...]
    _by_id: MappingProxyType[str, Entity] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_id", MappingProxyType({e.id: e for e in self.entities}))

    def get(self, entity_id: str | None) -> Entity | None:
        return self._by_id.get(entity_id) if entity_id else None


@cache
def atlas(subset: Subset = EVERYTHING) -> Atlas:
    """The part of the world that `subset` asks for.

    Raises:
        AtlasError: when nothing is left.
    """
    kept = [entity for entity in map(_Keep(subset), load_entities()) if entity is not None]
    if subset.max_entities is not None:
        chosen = {entity.id for entity in _in_turn(kept)[: subset.max_entities]}
        kept = [entity for entity in kept if entity.id in chosen]
    if not kept:
        raise AtlasError(f"no entity of {len(load_entities())} is in {subset}; allow more kinds, attributes or words")
    return Atlas(tuple(kept))


@dataclass(frozen=True)
class _Keep:
    subset: Subset

    def __call__(self, entity: Entity) -> Entity | None:
        """The entity with the facts that stay; None when it, or everything that can be asked of it, goes."""
        subset = self.subset
        if entity.kind not in subset.kinds or not subset.allows(entity.name):
            return None
        facts = tuple(
            fact
            for fact in entity.facts
            if (subset.attributes is None or fact.attribute in subset.attributes)
            and (subset.allows(fact.value) or not ATTRIBUTES[entity.kind, fact.attribute].question)
        )
        asked = any(ATTRIBUTES[entity.kind, fact.attribute].question for fact in facts)
        return replace(entity, facts=facts) if asked else None


def _in_turn(entities: Iterable[Entity]) -> list[Entity]:
    """The first of each kind, the second of each kind, and so on: no kind crowds out the others."""
    by_kind: dict[str, list[Entity]] = {}
    for entity in entities:
        by_kind.setdefault(entity.kind, []).append(entity)
    return [entity for row in zip_longest(*by_kind.values()) for entity in row if entity is not None]
