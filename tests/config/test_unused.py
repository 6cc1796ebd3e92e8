"""Every row of the table of settings that would do nothing: refused where its condition holds, accepted elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from mempo.config.base import Settings
from mempo.config.engine import SamplerSettings
from mempo.config.retrieval import BuildSettings
from mempo.config.rewards import LookaheadSettings, MemorySettings, ProbeSettings
from mempo.config.schema import Config
from mempo.config.train import LossSettings, OptimSettings, SftSettings
from mempo.config.unused import TABLE

ENCODER = {"encoder": "minilm"}
ENVIRONMENT = {"environment": "atlas"}
LOSSY = {"expert": {"loss": 0.5}}
COMPRESSION = {"reward": "compression", "baseline": "none"}

REFUSED: list[tuple[type[Settings], dict[str, Any], str]] = [
    (Config, {"data": {"where": {"level": "hard"}}}, "data.where chooses among the questions of a file"),
    (Config, {"data": {**ENVIRONMENT, "test": "q.jsonl"}}, "data.test would be ignored"),
    (Config, {"data": {"environment": "maze", "corpus": "c.jsonl"}}, "data.corpus would be ignored"),
    (Config, {"data": {"environment_options": {"width": 3}}}, r"clear them (data.environment_options={})"),
    (Config, {"data": {"train_questions": 7}}, "data.train_questions is 7, questions drawn from an environment"),
    (Config, {"rl": {"steps": 1}, "agent": {"notes": "forbidden"}}, "set rl.memory_signal=false"),
    (
        Config,
        {"advantages": "m:f", "memory": {"weight": 2.0}},
        "advantages.function is m:f, so memory.weight would do nothing",
    ),
    (Config, {"limits": {"max_note_tokens": 64}, "agent": {"notes": "forbidden"}}, "so there is no note to limit"),
    (Config, {"limits": {"max_note_tokens": 512}}, "never reached, since a whole turn has limits.max_turn_tokens 512"),
    (
        Config,
        {"sft": {"steps": 9, "lossy_steps": 6, **LOSSY}, "toy": {"warmup_steps": 3}},
        "sft.lossy_steps is 6, which leaves no step for complete notes: SFT has 9",
    ),
    (SftSettings, {"lossy_steps": 2}, "lossy_steps is 2, but expert.loss is 0"),
    (SftSettings, {"lossy_steps": 2, **LOSSY, "rollouts": "x"}, "lossy_steps does nothing with rollouts"),
    (BuildSettings, {"cache": "x"}, "cache would do nothing for an index of kind bm25"),
    (BuildSettings, {"kind": "dense", **ENCODER, "lexical": "tantivy"}, "it is the one half of kind hybrid"),
    (BuildSettings, {"kind": "dense", **ENCODER, "title_weight": 3}, "which looks up no words"),
    (
        BuildSettings,
        {"kind": "dense", **ENCODER, "faiss_file": "x", "dense": {"factory": "SQ8"}},
        "dense.factory would do nothing beside faiss_file",
    ),
    (SamplerSettings, {"max_rows": 8}, "engine is local, so max_rows=8 would do nothing"),
    (OptimSettings, {"muon_lr": 0.1}, "muon_lr does nothing with kind adamw"),
    (LossSettings, {"kl_coef": 0.25}, "kl_coef 0.25 does nothing with kl none"),
    (LossSettings, {"kl": "k2"}, "kl k2 does nothing with kl_coef 0"),
    (ProbeSettings, {"separators_are_gold": True, "joiner": ""}, "does nothing with an empty joiner"),
    (ProbeSettings, {"separators_are_gold": True, "objectives": "averaged"}, "with objectives averaged"),
    (LookaheadSettings, {"gamma": 0.5}, "gamma does nothing with k 0"),
    (MemorySettings, {"threshold_value": 0.25}, "threshold_value does nothing with threshold none"),
    (
        MemorySettings,
        {"threshold": "independent", "threshold_quantile": 0.5, "threshold_value": 0.25},
        "threshold_value does nothing beside threshold_quantile",
    ),
    (MemorySettings, {"empty_is_one": True}, "empty_is_one belongs to threshold independent, not none"),
    (MemorySettings, {"full_policy": "reference"}, "full_policy reference does nothing with baseline none"),
    (MemorySettings, {"ratio_eps": 0.5}, "ratio_eps does nothing with reward difference"),
    (MemorySettings, {**COMPRESSION, "ratio_eps": 0.5}, "where nothing is divided by P(base)"),
    (MemorySettings, {"length_limit_tokens": 9}, "length_limit_tokens does nothing with length_penalty 0"),
    (MemorySettings, {"pool": "question", "min_pool": 5}, "min_pool does nothing with pool question"),
    (MemorySettings, {"small_pool": "original", "min_pool": 5}, "min_pool does nothing with small_pool original"),
    (MemorySettings, {"weight": 0, "gate": "when_group_varies"}, "gate when_group_varies does nothing with weight 0"),
]

ACCEPTED: list[tuple[type[Settings], dict[str, Any]]] = [
    (Config, {"data": {"where": {"level": "hard"}, "test": "q.jsonl"}}),
    (Config, {"data": {"environment": "maze", "test": "q.jsonl"}}),
    (Config, {"rl": {"steps": 1, "memory_signal": False}, "agent": {"notes": "forbidden"}}),
    (Config, {"advantages": "m:f", "memory": "original"}),
    (Config, {"limits": {"max_note_tokens": 511}}),
    (BuildSettings, {"kind": "dense", **ENCODER, "faiss_file": "x", "dense": {"nprobe": 8}}),
    (SamplerSettings, {"engine": "vllm", "max_rows": 8}),
    (Config, {"sft": {"steps": 10, "lossy_steps": 6, **LOSSY}, "toy": {"warmup_steps": 3}}),
    (Config, {"sft": {"steps": 0, "lossy_steps": 6, **LOSSY}}),  # no SFT: none of its settings does anything
    (OptimSettings, {"kind": "muon", "muon_lr": 0.1}),
    (LossSettings, {"kl": "k3", "kl_coef": 0.25}),
    (LookaheadSettings, {"k": 1, "gamma": 0.5}),
    (MemorySettings, {"threshold": "independent", "threshold_value": 0.25, "empty_is_one": True}),
    (MemorySettings, {"reward": "log_ratio", "ratio_eps": 0.5}),
    (MemorySettings, {"threshold_value": 0.5}),  # the default, as a resolved configuration gives it
]


@pytest.mark.parametrize(("settings", "given", "said"), REFUSED, ids=lambda value: str(value)[:40])
def test_a_setting_that_would_do_nothing_is_refused(settings: type[Settings], given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        settings.model_validate(given)
    assert said in str(caught.value)


@pytest.mark.parametrize(("settings", "given"), ACCEPTED, ids=str)
def test_the_same_setting_is_accepted_where_it_does_something(settings: type[Settings], given: dict[str, Any]) -> None:
    settings.model_validate(given)


def test_every_row_of_the_table_is_tried_here_and_speaks_of_settings_that_exist() -> None:
    classes = {kind.__name__: kind for kind, *_ in REFUSED}
    for rule in TABLE:
        assert rule.of in classes
        for key in rule.keys:
            fields = classes[rule.of].model_fields
            *sections, name = key.split(".")
            for section in sections:
                annotation = fields[section].annotation
                assert isinstance(annotation, type)
                assert issubclass(annotation, Settings)
                fields = annotation.model_fields
            assert name in fields
