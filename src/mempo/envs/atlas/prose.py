"""An entity's facts as a few English sentences. The wording varies with the entity and never with the run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

from mempo.envs.atlas.facts import Entity, Fact
from mempo.envs.atlas.schema import phrase, region


def tell(entity: Entity) -> str:
    """All facts of an entity that its subset keeps, in English."""
    return " ".join(_TELLERS[entity.kind](entity))


def _pick(entity: Entity, what: str, *wordings: str) -> str:
    """One of several wordings, fixed for this entity and fact."""
    digest = hashlib.sha256(f"{entity.id} {what}".encode()).digest()
    return wordings[digest[0] % len(wordings)]


def _start(text: str) -> str:
    return text[:1].upper() + text[1:]


def _stop(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _listed(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _land(fact: Fact) -> str:
    """A country as its value and, where they differ, the source's name for it: `Prussia (now part of Poland)`."""
    name = phrase("country", fact.value)
    return f"{fact.original} (now part of {name})" if fact.original else name


def _was(fact: Fact) -> str:
    return f"{fact.original} (now {fact.value})" if fact.original else fact.value


def _country(e: Entity) -> Iterator[str]:
    s = phrase(e.kind, e.name)
    subregion, continent = e.only("subregion"), e.only("continent")
    if subregion:
        lies = _pick(e, "subregion", "lies in", "is in")
        among = ""
        if continent and continent.value not in subregion.value:  # "Western Europe" says Europe
            among = f", in the continental region of {region(continent.value)}"
        yield f"{_start(s)} {lies} {region(subregion.value)}{among}."
    elif continent:
        yield f"{_start(s)} lies in {region(continent.value)}."
    if fact := e.only("capital"):
        yield _pick(
            e,
            "capital",
            f"The capital of {s} is {fact.value}.",
            f"{fact.value} is the capital of {s}.",
            f"Its capital is {fact.value}.",
        )
    if fact := e.only("population"):
        yield _pick(
            e,
            "population",
            f"It has a population of {fact.value}.",
            f"The population of {s} is {fact.value}.",
            f"About {fact.value} people live there.",
        )
    if fact := e.only("area"):
        yield _pick(
            e, "area", f"It covers {fact.value} square kilometres.", f"Its area is {fact.value} square kilometres."
        )
    coin, code = e.only("currency"), e.only("currency code")
    if coin:
        named = f"the {coin.original or coin.value}" + (f" ({code.value})" if code else "")
        yield _pick(
            e, "currency", f"The currency is {named}.", f"People pay with {named}.", f"The currency of {s} is {named}."
        )
    elif code:
        yield f"The code of its currency is {code.value}."
    point, height = e.only("highest point"), e.only("summit height")
    if point:
        tall = f", {height.value} metres above sea level" if height else ""
        named = point.original or point.value
        yield _pick(e, "point", f"The highest point of {s} is {named}{tall}.", f"Its highest point is {named}{tall}.")
    elif height:
        yield f"Its highest point is {height.value} metres above sea level."
    if fact := e.only("demonym"):
        yield _pick(
            e,
            "demonym",
            f"The adjective for people and things from {s} is {fact.value}.",
            f"People and things from {s} are called {fact.value}.",
        )
    if fact := e.only("main language"):
        yield f"The main language is {fact.value}."
    if fact := e.only("anthem"):
        yield _pick(
            e,
            "anthem",
            f'The national anthem of {s} is "{fact.value}".',
            f'Its national anthem is called "{fact.value}".',
        )
    domain, calling = e.only("internet domain"), e.only("calling code")
    if domain and calling:
        yield f"The internet domain is {domain.value} and the international calling code is {calling.value}."
    elif domain or calling:
        yield (
            f"The internet domain is {domain.value}."
            if domain
            else f"The calling code is {calling.value if calling else ''}."
        )
    if near := e.get("neighbour"):
        names = _listed([phrase("country", fact.value) for fact in near])
        only = e.only("only neighbour")
        yield (
            f"The only land border of {s} is with {names}."
            if only
            else f"{_start(s)} shares land borders with {names}."
        )
    elif fact := e.only("only neighbour"):
        yield f"The only land border of {s} is with {phrase('country', fact.value)}."


def _city(e: Entity) -> Iterator[str]:
    land = e.only("country")
    where = phrase("country", land.value) if land else ""
    if e.only("capital of") and land:
        yield _pick(
            e, "country", f"{e.name} is the capital of {where}.", f"{e.name} is a city in {where} and its capital."
        )
    elif land:
        yield _pick(
            e,
            "country",
            f"{e.name} is a city in {where}.",
            f"{e.name} lies in {where}.",
            f"The city of {e.name} is in {where}.",
        )
    if fact := e.only("population"):
        yield _pick(
            e,
            "population",
            f"It has {fact.value} inhabitants.",
            f"The population of {e.name} is {fact.value}.",
            f"About {fact.value} people live there.",
        )
    if fact := e.only("elevation"):
        yield f"It lies {fact.value} metres above sea level."
    if fact := e.only("coordinates"):
        yield _pick(e, "coordinates", f"Its coordinates are {fact.value}.", f"It is found at {fact.value}.")


def _element(e: Entity) -> Iterator[str]:
    symbol, number = e.only("symbol"), e.only("atomic number")
    marks = [f"the symbol {symbol.value}" if symbol else "", f"the atomic number {number.value}" if number else ""]
    if marks := [mark for mark in marks if mark]:
        yield f"{e.name} is a chemical element with {_listed(marks)}."
    family, period, group = e.only("family"), e.only("period"), e.only("group")
    if family:
        yield _pick(
            e,
            "family",
            f"It belongs to the family of the {family.value}.",
            f"Its family is that of the {family.value}.",
        )
    if period:
        column = f" and group {group.value}" if group else ""
        yield f"In the periodic table it stands in period {period.value}{column}."
    elif group:
        yield f"In the periodic table it stands in group {group.value}."
    who, year, land = e.only("discoverer"), e.only("discovery year"), e.only("discovery country")
    if who or year or land:
        by = f" by {who.original or who.value}" if who else ""
        yield f"It was discovered{f' in {year.value}' if year else ''}{by}{f' in {_land(land)}' if land else ''}."
    if fact := e.only("name origin"):
        yield f"Where the name comes from: {_stop(fact.value)}"
    if fact := e.only("uses"):
        yield _stop(fact.value)


def _laureate(e: Entity) -> Iterator[str]:
    date, year = e.only("birth date"), e.only("birth year")
    town, land = e.only("birth city"), e.only("birth country")
    when = f" on {date.value}" if date else f" in {year.value}" if year else ""
    places = [*([_was(town)] if town else []), *([_land(land)] if land else [])]
    if when or places:
        yield f"{e.name} was born{when}{' in ' + ', '.join(places) if places else ''}."
    for prize in e.get("prize"):
        yield _pick(e, prize.value, f"{e.name} was awarded the {prize.value}.", f"The {prize.value} went to {e.name}.")
    years, fields = e.get("prize year"), e.get("prize field")
    if len(years) == 1 and len(fields) == 1:
        yield f"The award of {years[0].value} was in the field of {fields[0].value}."
    elif years or fields:
        yield f"Awards: {_listed([fact.value for fact in (*fields, *years)])}."
    if fact := e.only("affiliation"):
        yield _pick(
            e,
            "affiliation",
            f"At the time of the award the affiliation was {fact.value}.",
            f"{e.name} was then at {fact.value}.",
        )
    if fact := e.only("writing language"):
        yield f"The language of the author's work is {fact.value}."


def _prize(e: Entity) -> Iterator[str]:
    if winners := e.get("winner"):
        names = _listed([fact.value for fact in winners])
        yield _pick(e, "winner", f"The {e.name} was awarded to {names}.", f"{names} received the {e.name}.")
    if fact := e.only("citation"):
        yield _stop(fact.value)


_TELLERS: dict[str, Callable[[Entity], Iterator[str]]] = {
    "country": _country,
    "city": _city,
    "element": _element,
    "laureate": _laureate,
    "prize": _prize,
}
