"""What can be said of each kind of entity, and how it is asked.

`{s}` stands for the subject as a phrase ("the Netherlands", "iron"), `{v}` for the value. Attributes without a question
are told in prose documents and never asked: they have several values, are long, or mirror another attribute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["country", "city", "element", "laureate", "prize"]


@dataclass(frozen=True, slots=True)
class Attribute:
    """`question` asks for the value, `bridge` names it inside another question, `inverse` asks whose value it is."""

    kind: Kind
    name: str
    question: str = ""
    bridge: str = ""
    inverse: str = ""


_LAND = "country or territory"

_ALL: tuple[Attribute, ...] = (
    Attribute(
        "country",
        "capital",
        "What is the capital of {s}?",
        "the capital of {s}",
        f"Which {_LAND} has {{v}} as its capital?",
    ),
    Attribute(
        "country", "currency", "What is the currency of {s}?", inverse=f"Which {_LAND} uses the {{v}} as its currency?"
    ),
    Attribute("country", "currency code", "What is the three-letter code of the currency of {s}?"),
    Attribute("country", "continent"),
    Attribute("country", "subregion", "In which subregion of the world does {s} lie?"),
    Attribute("country", "population", "What is the population of {s}?"),
    Attribute("country", "area", "What is the area of {s} in square kilometres?"),
    Attribute(
        "country",
        "highest point",
        "What is the highest point of {s}?",
        inverse=f"Which {_LAND} has {{v}} as its highest point?",
    ),
    Attribute("country", "summit height", "How many metres above sea level is the highest point of {s}?"),
    Attribute("country", "demonym", "Which adjective describes people and things from {s}?"),
    Attribute("country", "main language", "What is the main language of {s}?"),
    Attribute(
        "country",
        "anthem",
        "What is the title of the national anthem of {s}?",
        inverse=f'Which {_LAND} has the national anthem "{{v}}"?',
    ),
    Attribute(
        "country",
        "internet domain",
        "What is the internet domain of {s}?",
        inverse=f"Which {_LAND} has the internet domain {{v}}?",
    ),
    Attribute(
        "country",
        "calling code",
        "What is the international calling code of {s}?",
        inverse=f"Which {_LAND} has the calling code {{v}}?",
    ),
    Attribute("country", "neighbour"),
    Attribute(
        "country",
        "only neighbour",
        f"Which is the only {_LAND} that borders {{s}} on land?",
        "the only neighbour of {s}",
    ),
    Attribute("city", "country", f"In which {_LAND} is {{s}}?", f"the {_LAND} where {{s}} is"),
    Attribute("city", "population", "How many people live in {s}?"),
    Attribute("city", "elevation", "How many metres above sea level is {s}?"),
    Attribute("city", "coordinates"),
    Attribute("city", "capital of"),
    Attribute(
        "element",
        "symbol",
        "What is the chemical symbol of {s}?",
        inverse="Which chemical element has the symbol {v}?",
    ),
    Attribute(
        "element",
        "atomic number",
        "What is the atomic number of {s}?",
        inverse="Which chemical element has the atomic number {v}?",
    ),
    Attribute("element", "family", "To which family of elements does {s} belong?"),
    Attribute("element", "period", "In which period of the periodic table is {s}?"),
    Attribute("element", "group", "In which group of the periodic table is {s}?"),
    Attribute("element", "discoverer", "Who discovered {s}?", inverse="Which chemical element was discovered by {v}?"),
    Attribute("element", "discovery year", "In which year was {s} discovered?"),
    Attribute(
        "element", "discovery country", "In which country was {s} discovered?", "the country where {s} was discovered"
    ),
    Attribute("element", "name origin"),
    Attribute("element", "uses"),
    Attribute("laureate", "birth date", "On which date was {s} born?"),
    Attribute("laureate", "birth year", "In which year was {s} born?"),
    Attribute("laureate", "birth city", "In which town or city was {s} born?", "the city where {s} was born"),
    Attribute(
        "laureate",
        "birth country",
        "In which present-day country was {s} born?",
        "the present-day country where {s} was born",
    ),
    Attribute("laureate", "writing language", "In which language did {s} write?"),
    Attribute("laureate", "affiliation", "With which institution was {s} at the time of the Nobel award?"),
    Attribute("laureate", "prize field", "For which field was {s} awarded a Nobel prize?"),
    Attribute("laureate", "prize year", "In which year was {s} awarded a Nobel prize?"),
    Attribute("laureate", "prize"),
    Attribute("prize", "winner", "Who was awarded {s}?", "the winner of {s}"),
    Attribute("prize", "citation"),
)

ATTRIBUTES: Mapping[tuple[str, str], Attribute] = {(a.kind, a.name): a for a in _ALL}
ATTRIBUTE_NAMES: frozenset[str] = frozenset(a.name for a in _ALL)

_WITH_THE = frozenset(
    {"Netherlands", "Philippines", "Bahamas", "Gambia", "Maldives", "Comoros", "Seychelles", "Isle of Man",
     "Palestinian Territory"}
)  # fmt: skip
_WITH_THE_ENDINGS = ("Islands", "Republic", "Emirates", "Kingdom", "States", "of the Congo", "Caribbean Netherlands")


def phrase(kind: str, name: str) -> str:
    """The name inside an English sentence: `the United States`, `iron`, `the 1957 Nobel Prize in Literature`."""
    if kind == "element":
        return name.lower()
    if kind == "prize" or (kind == "country" and (name in _WITH_THE or name.endswith(_WITH_THE_ENDINGS))):
        return f"the {name}"
    return name


def region(name: str) -> str:
    """A part of the world inside an English sentence: `the Caribbean`, `Western Europe`."""
    return f"the {name}" if name in {"Caribbean", "Americas"} else name
