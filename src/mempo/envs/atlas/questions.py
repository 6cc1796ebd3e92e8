"""Questions drawn from the objectives: seeded, split by entity, with one objective or several."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Sequence
from functools import cache
from typing import Any

from mempo.envs.atlas.documents import Rendering, check_rendering
from mempo.envs.atlas.facts import AtlasError
from mempo.envs.atlas.objectives import FORMS, Form, Objective, objectives
from mempo.envs.atlas.split import TEST_FRACTION, Split, split_of
from mempo.envs.atlas.subset import EVERYTHING, Subset
from mempo.errors import counted, nearest
from mempo.rollout.question import Question

MAX_OBJECTIVES = 10
_TRIES = 200  # draws for one new composition before the pool counts as exhausted


@cache
def pool(
    split: Split,
    forms: tuple[Form, ...] = FORMS,
    subset: Subset = EVERYTHING,
    test_fraction: float = TEST_FRACTION,
) -> tuple[Objective, ...]:
    """The objectives of a split: those whose facts all belong to it (see `split.py`).

    Raises:
        AtlasError: for an unknown split or form, or a fraction outside 0..1.
    """
    if split not in ("train", "test"):
        raise AtlasError(f"the atlas has no split {split!r}; choose train or test")
    if not forms:
        raise AtlasError(f"no form of question is allowed; choose from {', '.join(FORMS)}")
    for form in forms:
        if form not in FORMS:
            raise AtlasError(f"the atlas has no form {form!r}{nearest(form, FORMS)}; choose from {', '.join(FORMS)}")
    if not 0 <= test_fraction <= 1:
        raise AtlasError(f"the test fraction is {test_fraction}; it must lie between 0 and 1")
    return tuple(
        objective
        for objective in objectives(subset)
        if objective.form in forms and all(split_of(hop.owner, test_fraction) == split for hop in objective.hops)
    )


def questions(
    *,
    split: Split,
    count: int,
    objectives: int | Sequence[int] = 1,
    seed: int = 0,
    rendering: Rendering = "prose",
    forms: Sequence[Form] = FORMS,
    subset: Subset = EVERYTHING,
    test_fraction: float = TEST_FRACTION,
) -> list[Question]:
    """`count` different questions of `objectives` objectives each (1 to 10; of several numbers, each in turn).

    Forms and kinds are drawn evenly, so that the many cities do not crowd out the rest. Within a question no two
    objectives share an entity that they ask about or pass through. The same arguments give the same questions; another
    seed gives another draw.

    Raises:
        AtlasError: when the pool holds fewer than asked for.
    """
    check_rendering(rendering)
    sizes = (objectives,) if isinstance(objectives, int) else tuple(objectives)
    if not sizes or any(not 1 <= size <= MAX_OBJECTIVES for size in sizes):
        raise AtlasError(f"a question has 1 to {MAX_OBJECTIVES} objectives, not {objectives!r}")
    if count < 0:
        raise AtlasError(f"{count} questions were asked for; the count must be 0 or more")
    found = pool(split, tuple(forms), subset, test_fraction)
    rng = random.Random(f"atlas {split} {seed}")
    tree = _tree(found)
    singles = _shuffled(tree, rng)
    made: list[Question] = []
    seen: set[frozenset[str]] = set()
    for i in range(count):
        size = sizes[i % len(sizes)]
        chosen = _pop(singles, rng) if size == 1 else _compose(tree, size, seen, rng)
        if chosen is None:
            raise AtlasError(
                f"only {i} of {count} {split} questions with {counted(size, 'objective')} could be made from a pool of "
                f"{counted(len(found), 'objective')}; ask for fewer, or allow more entities, attributes or forms"
            )
        seen.add(frozenset(objective.id for objective in chosen))
        made.append(_question(chosen, split, rendering))
    return made


_Tree = dict[str, dict[str, dict[tuple[str, ...], list[Objective]]]]  # form → kind → path → objectives


def _tree(found: Sequence[Objective]) -> _Tree:
    tree: _Tree = {}
    for objective in found:
        form, kind = objective.path[:2]
        tree.setdefault(form, {}).setdefault(kind, {}).setdefault(objective.path, []).append(objective)
    return tree


def _shuffled(tree: _Tree, rng: random.Random) -> _Tree:
    return {
        form: {
            kind: {path: rng.sample(leaf, len(leaf)) for path, leaf in paths.items()} for kind, paths in kinds.items()
        }
        for form, kinds in tree.items()
    }


def _draw(tree: _Tree, rng: random.Random) -> Objective:
    kinds = rng.choice(list(tree.values()))
    paths = rng.choice(list(kinds.values()))
    return rng.choice(paths[_path(paths, rng)])


def _path(paths: dict[tuple[str, ...], list[Objective]], rng: random.Random) -> tuple[str, ...]:
    """A path, with the square root of its size as its weight: rare ones are seen, and their few facts not worn out."""
    return rng.choices(list(paths), [math.sqrt(len(leaf)) for leaf in paths.values()])[0]


def _pop(tree: _Tree, rng: random.Random) -> tuple[Objective] | None:
    """An objective that has not been popped before; None when none is left."""
    if not tree:
        return None
    form = rng.choice(list(tree))
    kind = rng.choice(list(tree[form]))
    path = _path(tree[form][kind], rng)
    leaf = tree[form][kind][path]
    objective = leaf.pop()
    if not leaf:
        del tree[form][kind][path]
    if not tree[form][kind]:
        del tree[form][kind]
    if not tree[form]:
        del tree[form]
    return (objective,)


def _compose(tree: _Tree, size: int, seen: set[frozenset[str]], rng: random.Random) -> tuple[Objective, ...] | None:
    """`size` objectives about different entities, a set not seen before; None when chance finds none."""
    if not tree:
        return None
    for _ in range(_TRIES):
        chosen: list[Objective] = []
        about: set[str] = set()
        for _ in range(_TRIES):
            objective = _draw(tree, rng)
            entities = {hop.owner.id for hop in objective.hops}
            if about.isdisjoint(entities):
                about |= entities
                chosen.append(objective)
                if len(chosen) == size:
                    break
        if len(chosen) == size and frozenset(objective.id for objective in chosen) not in seen:
            return tuple(chosen)
    return None


def _question(chosen: tuple[Objective, ...], split: str, rendering: Rendering) -> Question:
    """One question; its gold is the aliases of one objective or a tuple of aliases for each of several.

    `meta` says per objective, in order of hops: `documents` (ids), `facts` (attribute, subject name, value), `queries`
    (what to search for) and `finds` (what that search finds).
    """
    names = "\n".join(objective.id for objective in chosen)
    digest = hashlib.sha256(names.encode()).hexdigest()[:12]
    single = len(chosen) == 1
    meta: dict[str, Any] = {
        "environment": "atlas",
        "split": split,
        "rendering": rendering,
        "forms": [objective.form for objective in chosen],
        "objectives": [objective.text(rendering) for objective in chosen],
        "documents": [list(objective.documents(rendering)) for objective in chosen],
        "facts": [[list(hop.triple) for hop in objective.hops] for objective in chosen],
        "queries": [[hop.query for hop in objective.hops] for objective in chosen],
        "finds": [[hop.finds for hop in objective.hops] for objective in chosen],
    }
    return Question(
        id=f"atlas/{chosen[0].id.replace(' ', '-')}" if single else f"atlas/{len(chosen)}/{digest}",
        text="; ".join(objective.text(rendering) for objective in chosen),
        gold=chosen[0].answers if single else tuple(objective.answers for objective in chosen),
        meta=meta,
    )
