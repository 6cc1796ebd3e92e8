"""Atlas: a built-in environment of real facts, with a corpus and questions of one to ten objectives.

    environment = AtlasEnvironment(rendering="cards", subset=TOY)
    environment.documents()                                # capital of France: Paris
    environment.questions("train", 100, objectives=3)      # capital of Kenya; symbol of Iron; country with currency Yen

`facts.py` loads the shipped data, `subset.py` chooses a part of it, `documents.py` renders it, `objectives.py` lists
what can be asked, `split.py` says what is held out, `questions.py` draws questions. No torch anywhere.
"""

from mempo.envs.atlas.documents import Rendering, documents
from mempo.envs.atlas.environment import AtlasEnvironment, write
from mempo.envs.atlas.facts import AtlasError, Entity, Fact, load_entities
from mempo.envs.atlas.objectives import FORMS, Form, Hop, Objective, objectives
from mempo.envs.atlas.questions import MAX_OBJECTIVES, pool, questions
from mempo.envs.atlas.split import TEST_FRACTION, Split, split_of
from mempo.envs.atlas.subset import EVERYTHING, TOY, Atlas, Subset, atlas

__all__ = [
    "EVERYTHING",
    "FORMS",
    "MAX_OBJECTIVES",
    "TEST_FRACTION",
    "TOY",
    "Atlas",
    "AtlasEnvironment",
    "AtlasError",
    "Entity",
    "Fact",
    "Form",
    "Hop",
    "Objective",
    "Rendering",
    "Split",
    "Subset",
    "atlas",
    "documents",
    "load_entities",
    "objectives",
    "pool",
    "questions",
    "split_of",
    "write",
]
