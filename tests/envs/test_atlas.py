"""The atlas: shipped data, documents, objectives, splits and questions."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from importlib import resources
from pathlib import Path

import pytest

from mempo.envs.atlas import (
    EVERYTHING,
    FORMS,
    TOY,
    AtlasEnvironment,
    AtlasError,
    Objective,
    Rendering,
    Subset,
    atlas,
    documents,
    load_entities,
    objectives,
    pool,
    questions,
    split_of,
    write,
)
from mempo.envs.atlas.facts import fold, stands_in
from mempo.retrieval.corpus import Document
from mempo.rollout.interfaces import Environment
from mempo.rollout.question import as_gold

SMALL = Subset(kinds=("country", "element", "prize", "laureate"), max_entities=400)
TOY_TWO_HOP = Subset(kinds=("country", "element"), attributes=("capital", "discovery country"), max_words=1)


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """Folded title and text of every prose document, by id."""
    return {d.id: fold(f"{d.title} {d.text}") for d in documents("prose")}


def of_form(form: str, subset: Subset = EVERYTHING) -> list[Objective]:
    return [o for o in objectives(subset) if o.form == form]


# --- shipped data ---------------------------------------------------------------------------------------------------


def test_the_shipped_files_are_those_of_the_manifest() -> None:
    data = resources.files("mempo.envs.atlas") / "data"
    sums = [line.split("  ") for line in (data / "SHA256SUMS").read_text().splitlines()]
    assert {name for _, name in sums} == {"facts.jsonl.gz", "ATTRIBUTION.md"}
    for digest, name in sums:
        assert hashlib.sha256((data / name).read_bytes()).hexdigest() == digest, f"{name} was not made by the build"


def test_attribution_names_every_source_and_licence() -> None:
    text = (resources.files("mempo.envs.atlas") / "data" / "ATTRIBUTION.md").read_text(encoding="utf-8")
    for needed in (
        "Copyright (c) 2026 PyWorldAtlas maintainers",
        "Copyright (c) 2015 Lukasz Mentel",
        "Copyright (c) 2016, Eric Larson",
        "Copyright © 1991-2026 Unicode, Inc.",
        "CC BY 4.0",
    ):
        assert needed in text


def test_counts() -> None:
    counts = Counter(entity.kind for entity in load_entities())
    assert counts == {"country": 241, "city": 3917, "element": 118, "laureate": 812, "prize": 543}


def test_subjects_are_unique_and_links_lead_somewhere() -> None:
    entities = load_entities()
    assert len({e.id for e in entities}) == len(entities)
    assert len({fold(e.name) for e in entities}) == len(entities)
    names = {e.id: e.name for e in entities}
    for entity in entities:
        for fact in entity.facts:
            assert fact.entity is None or names[fact.entity] == fact.value


def test_values_are_clean() -> None:
    for entity in load_entities():
        assert entity.name == entity.name.strip()
        assert not re.search(r"[()\[\];?<>]", entity.name), entity.name
        for fact in entity.facts:
            for text in fact.answers:
                assert text == text.strip() != ""
                assert not re.search(r"[;<>\[\]�]|\?\w|  |unnamed|ancients", text), (entity.id, fact)
            assert len(set(fact.answers)) == len(fact.answers)


def test_names_with_marks_have_plain_aliases() -> None:
    named = {e.name: e for e in load_entities()}
    assert "Curacao" in named["Curaçao"].aliases
    assert "Erwin Schrodinger" in named["Erwin Schrödinger"].aliases
    assert {"USA", "United States of America"} <= set(named["United States"].aliases)
    assert {"Forint", "Hungarian Forint"} == set(named["Hungary"].get("currency")[0].answers)


# --- documents ------------------------------------------------------------------------------------------------------


def test_prose_has_one_document_per_entity_that_can_be_asked_about() -> None:
    found = documents("prose")
    assert len({d.id for d in found}) == len({d.url for d in found}) == len(found) == 5630
    france = next(d for d in found if d.id == "country/france")
    assert france.title == "France"
    assert france.url == "atlas://country/france"
    assert "capital is Paris" in france.text
    assert "shares land borders with" in france.text


def test_cards_state_one_fact_a_line() -> None:
    found = {d.id: d for d in documents("cards")}
    assert found["country/france#capital"] == Document(
        id="country/france#capital",
        title="France",
        text="capital of France: Paris",
        url="atlas://country/france#capital",
    )
    assert all("\n" not in d.text and ": " in d.text for d in found.values())


@pytest.mark.parametrize("subset", [EVERYTHING, TOY])
def test_a_search_for_a_card_finds_it_among_distractors(subset: Subset) -> None:
    cards = documents("cards", subset)
    ranking = bm25(cards, "capital of France")
    assert ranking[0].id == "country/france#capital"
    assert len(ranking) > 20  # the other passages are wrong


def bm25(cards: tuple[Document, ...], query: str) -> list[Document]:
    bags = [Counter(fold(f"{d.title} {d.text}").split()) for d in cards]
    mean = sum(bag.total() for bag in bags) / len(bags)

    def score(bag: Counter[str]) -> float:
        total = 0.0
        for word in fold(query).split():
            frequency, holders = bag[word], sum(word in other for other in bags)
            idf = math.log(1 + (len(bags) - holders + 0.5) / (holders + 0.5))
            total += idf * frequency * 2.2 / (frequency + 1.2 * (0.25 + 0.75 * bag.total() / mean))
        return total

    candidates = [i for i, bag in enumerate(bags) if any(word in bag for word in fold(query).split())]
    wanted = sorted(candidates, key=lambda i: len(set(fold(query).split()) & set(bags[i])), reverse=True)[:50]
    return [cards[i] for i in sorted(wanted, key=lambda i: -score(bags[i]))]


# --- objectives -----------------------------------------------------------------------------------------------------


def test_objectives_are_many_and_unique() -> None:
    counts = Counter(o.form for o in objectives())
    assert counts["one_hop"] > 17_000
    assert counts["two_hop"] > 50_000
    assert counts["inverse"] > 1_300
    assert len({o.id for o in objectives()}) == counts.total()
    assert len({o.prose for o in objectives()}) == counts.total()
    assert len({o.cards for o in objectives()}) == counts.total()


def test_one_hop_answers_stand_in_their_document(texts: dict[str, str]) -> None:
    for o in of_form("one_hop"):
        assert stands_in(texts[o.hops[0].owner.id], o.answers[:1]), o.id


def test_two_hop_answers_stand_in_the_second_document_and_not_in_the_first(texts: dict[str, str]) -> None:
    for o in of_form("two_hop"):
        first, second = (texts[i] for i in o.documents("prose"))
        assert stands_in(first, (o.hops[1].owner.name,)), o.id
        assert not stands_in(first, o.answers), o.id
        assert stands_in(second, o.answers[:1]), o.id


def test_two_hop_holds_among_cards_too() -> None:
    cards = {d.id: fold(d.text) for d in documents("cards", TOY_TWO_HOP)}
    found = of_form("two_hop", TOY_TWO_HOP)
    assert {o.path for o in found} == {("two_hop", "element", "discovery country", "capital")}
    for o in found:
        first, second = (cards[i] for i in o.documents("cards"))
        assert stands_in(second, o.answers[:1])
        assert not stands_in(first, o.answers)


def test_inverse_values_have_one_owner() -> None:
    owners: Counter[tuple[str, str, str]] = Counter()
    for e in load_entities():
        owners.update({(e.kind, f.attribute, fold(a)) for f in e.facts for a in f.answers})
    for o in of_form("inverse"):
        hop = o.hops[0]
        assert owners[hop.owner.kind, hop.fact.attribute, fold(hop.fact.value)] == 1, o.id
    assert "Which country or territory uses the Forint as its currency?" in {o.prose for o in of_form("inverse")}
    assert not any("uses the Euro" in o.prose for o in of_form("inverse"))


def test_no_question_gives_its_answer_away() -> None:
    for o in objectives():
        assert not stands_in(fold(o.prose), o.answers), o.prose


def test_the_two_wordings() -> None:
    by_id = {o.id: o for o in objectives()}
    capital = by_id["one_hop/country/netherlands/capital"]
    assert capital.prose == "What is the capital of the Netherlands?"
    assert capital.cards == "capital of Netherlands"
    coin = by_id["two_hop/city/lyon/country/currency"]
    assert coin.prose == "What is the currency of the country or territory where Lyon is?"
    assert coin.cards == "currency of country of Lyon"
    assert [hop.query for hop in coin.hops] == ["country of Lyon", "currency of France"]
    assert by_id["inverse/element/iron/symbol"].cards == "element with symbol Fe"


# --- splits ---------------------------------------------------------------------------------------------------------


def test_splits_share_no_fact_and_no_subject() -> None:
    facts = {}
    for split in ("train", "test"):
        hops = [hop for o in pool(split) for hop in o.hops]
        facts[split] = {(hop.owner.id, hop.fact.attribute) for hop in hops}
        assert facts[split]
    assert not facts["train"] & facts["test"]
    assert not {owner for owner, _ in facts["train"]} & {owner for owner, _ in facts["test"]}


def test_about_a_fifth_is_held_out_and_mirrored_facts_stay_together() -> None:
    entities = atlas().entities
    held_out = sum(split_of(e) == "test" for e in entities) / len(entities)
    assert 0.17 < held_out < 0.23
    environment = atlas()
    for country in (e for e in entities if e.kind == "country"):
        capital = country.only("capital")
        if capital and (city := environment.get(capital.entity)):
            assert split_of(city) == split_of(country)


def test_every_form_is_in_every_split() -> None:
    for split in ("train", "test"):
        for subset, forms in ((EVERYTHING, set(FORMS)), (TOY, {"one_hop", "inverse"})):
            assert {o.form for o in pool(split, subset=subset)} == forms


# --- questions ------------------------------------------------------------------------------------------------------


def test_same_seed_same_questions_other_seed_others() -> None:
    draw = {s: questions(split="train", count=40, objectives=3, seed=s, subset=SMALL) for s in (0, 1)}
    assert draw[0] == questions(split="train", count=40, objectives=3, seed=0, subset=SMALL)
    assert [q.text for q in draw[0]] != [q.text for q in draw[1]]


@pytest.mark.parametrize("k", range(2, 11))
def test_compositions_have_k_objectives_about_different_entities(k: int) -> None:
    for q in questions(split="test", count=20, objectives=k, seed=k, rendering="cards", subset=SMALL):
        assert len(q.objectives) == k
        assert q.text.split("; ") == q.meta["objectives"]
        assert len(set(q.meta["objectives"])) == k
        subjects = [subject for hops in q.meta["facts"] for _, subject, _ in hops]
        assert len(set(subjects)) == len(subjects)


def test_single_questions_are_a_flat_tuple_of_aliases() -> None:
    (q,) = questions(split="train", count=1, subset=Subset(attributes=("capital",)), forms=("one_hop",))
    assert q.gold
    assert all(isinstance(alias, str) for alias in q.gold)
    assert q.probe_objectives == (q.gold[0],)


def test_numbers_of_objectives_can_be_mixed() -> None:
    found = questions(split="train", count=9, objectives=(1, 2, 5), subset=SMALL)
    assert [len(q.objectives) for q in found] == [1, 2, 5] * 3


def test_questions_differ_until_the_pool_is_empty() -> None:
    size = len(pool("test", subset=TOY))
    found = questions(split="test", count=size, subset=TOY)
    assert len({q.id for q in found}) == size
    with pytest.raises(AtlasError, match=rf"only {size} of {size + 1} test questions"):
        questions(split="test", count=size + 1, subset=TOY)


def test_meta_names_documents_and_facts_in_order_of_hops() -> None:
    renderings: tuple[Rendering, ...] = ("prose", "cards")
    for rendering in renderings:
        found = {d.id: d for d in documents(rendering, SMALL)}
        for q in questions(split="train", count=30, objectives=3, rendering=rendering, subset=SMALL):
            for ids, facts, finds, aliases in zip(
                q.meta["documents"], q.meta["facts"], q.meta["finds"], q.objectives, strict=True
            ):
                assert finds[-1] == aliases[0]
                for identity, (_, subject, value) in zip(ids, facts, strict=True):
                    document = found[identity]
                    assert document.title == subject
                    assert stands_in(fold(document.text), (value,))


# --- subsets and files ----------------------------------------------------------------------------------------------


def test_the_toy_subset_keeps_a_small_vocabulary() -> None:
    environment = AtlasEnvironment(rendering="cards", subset=TOY)
    assert Counter(e.kind for e in atlas(TOY).entities) == {"country": 100, "element": 100}
    assert all(" " not in name and name.isascii() for name in environment.names())
    words = {word.strip(":") for word in environment.vocabulary()}
    assert 500 < len(words) < 1000
    for q in environment.questions("test", 20, 5):
        assert {word.strip(";") for word in q.text.split()} - words <= {"with", "country", "element"}


def test_the_same_subset_is_the_same_environment() -> None:
    few = Subset(kinds=("country",), max_entities=5)
    assert [e.name for e in atlas(few).entities] == ["China", "India", "United States", "Indonesia", "Pakistan"]


def test_atlas_is_an_environment() -> None:
    environment: Environment = AtlasEnvironment(subset=SMALL)
    assert isinstance(environment, Environment)
    assert environment.questions("test", 2, 2, 0)


def test_write_makes_the_three_files(tmp_path: Path) -> None:
    counts = write(tmp_path / "new", AtlasEnvironment(subset=SMALL), train=7, test=3, objectives=2)
    rows = {p.name: [json.loads(line) for line in p.open(encoding="utf-8")] for p in (tmp_path / "new").glob("*.jsonl")}
    assert {name: len(lines) for name, lines in rows.items()} == counts
    assert counts == {"corpus.jsonl": len(documents("prose", SMALL)), "train.jsonl": 7, "test.jsonl": 3}
    corpus = {row["id"]: row for row in rows["corpus.jsonl"]}
    assert corpus["country/france"]["contents"].startswith('"France"\n')
    for row in rows["train.jsonl"]:
        assert len(as_gold(row["answer"])) == 2
        assert {i for ids in row["meta"]["documents"] for i in ids} <= set(corpus)


def test_write_leaves_nothing_behind_when_the_questions_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(AtlasError, match="ask for fewer"):
        write(tmp_path / "new", AtlasEnvironment(subset=TOY), train=100_000)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Subset(kinds=("contry",)), "no kind 'contry'; did you mean 'country'"),  # pyright: ignore
        (lambda: Subset(attributes=("capitol",)), "no attribute 'capitol'; did you mean 'capital'"),
        (lambda: Subset(attributes="capital"), "not the string 'capital'"),  # pyright: ignore
        (lambda: Subset(max_entities=0), "max_entities is 0; it must be at least 1"),
        (lambda: atlas(Subset(kinds=("city",), attributes=("capital",))), "no entity of 5631 is in"),
        (lambda: documents("poem"), "no rendering 'poem'; choose prose or cards"),  # pyright: ignore
        (lambda: AtlasEnvironment().questions("dev", 1, 1, 0), "no split 'dev'; choose train or test"),
        (lambda: questions(split="train", count=1, objectives=11), "1 to 10 objectives, not 11"),
        (lambda: questions(split="train", count=-1), "-1 questions were asked for"),
        (lambda: questions(split="train", count=1, forms=("twohop",)), "did you mean 'two_hop'"),  # pyright: ignore
        (lambda: pool("train", test_fraction=2), "the test fraction is 2"),
    ],
)
def test_errors_name_the_fact_and_the_remedy(make, message: str) -> None:
    with pytest.raises(AtlasError, match=re.escape(message)):
        make()
