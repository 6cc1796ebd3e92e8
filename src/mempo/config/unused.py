"""Settings that would do nothing: one table, walked by one function.

A setting that is silently ignored makes a run another one than its configuration says, so it is refused. A rule speaks
of one settings class; its keys count as set where their value is not the default, because a resolved configuration
gives every key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ADVANTAGE_KEYS = ("pool", "min_pool", "small_pool", "weight", "normalize_std", "fade_batches", "gate")
"""The settings of `memory` that turn rewards into advantages; an own advantage function takes the place of them all."""

_DENSE_OF_BUILD = ("dense.factory", "dense.metric", "dense.train_sample", "dense.seed", "dense.stored_as")
_DENSE = (*_DENSE_OF_BUILD, "dense.nprobe", "dense.ef_search")


@dataclass(frozen=True)
class Unused:
    """`keys` of the class `of` would do nothing where `when` holds.

    `sentence` is filled in with `key`, its `value`, and the settings `s`. `is_set` of the settings and a key: where
    "another value than the default" is not what makes a key set.
    """

    of: str
    keys: tuple[str, ...]
    when: Callable[[Any], object]
    sentence: str
    is_set: Callable[[Any, str], object] | None = None


TABLE: tuple[Unused, ...] = (
    # --- the whole configuration
    Unused(
        "Config",
        ("data.where",),
        lambda s: not (s.data.train or s.data.test),
        "{key} chooses among the questions of a file, but data.train and data.test are not set",
    ),
    Unused(
        "Config",
        ("data.train", "data.test", "data.corpus"),
        lambda s: s.data.environment == "atlas",
        "data.environment is set, so {key} would be ignored; unset one (data.environment=null)",
    ),
    Unused(  # an environment plays the questions of a file too; whether an own environment is one shows when it is made
        "Config",
        ("data.corpus",),
        lambda s: s.data.environment is not None,
        "data.environment is set, so {key} would be ignored; unset one (data.environment=null)",
    ),
    Unused(
        "Config",
        ("data.environment_options",),
        lambda s: s.data.environment is None,
        "{key} are set without data.environment; clear them (data.environment_options={{}})",
    ),
    Unused(
        "Config",
        ("data.train_questions",),
        lambda s: s.data.environment is None,
        "{key} is {value}, questions drawn from an environment, but data.environment is not set; a question file is "
        "used whole",
    ),
    Unused(
        "Config",
        ("rl.memory_signal",),
        lambda s: s.rl.steps and s.agent.notes == "forbidden",
        "agent.notes is forbidden, so {key} would do nothing; set rl.memory_signal=false",
        is_set=lambda s, key: s.rl.memory_signal,
    ),
    Unused(  # with rl.memory_signal off they may stay: so a run is compared with one on the outcome alone by one switch
        "Config",
        tuple(f"memory.{name}" for name in ADVANTAGE_KEYS),
        lambda s: s.advantages.function,
        "advantages.function is {s.advantages.function}, so {key} would do nothing; unset one of the two",
        is_set=lambda s, key: s.memory.beside_preset(key.removeprefix("memory.")),
    ),
    Unused(
        "Config",
        ("limits.max_note_tokens",),
        lambda s: s.agent.notes == "forbidden",
        "{key} is {value}, but agent.notes is forbidden, so there is no note to limit; set {key}=null",
    ),
    Unused(
        "Config",
        ("limits.max_note_tokens",),
        lambda s: s.limits.max_note_tokens is not None and s.limits.max_note_tokens >= s.limits.max_turn_tokens,
        "{key} {value} is never reached, since a whole turn has limits.max_turn_tokens {s.limits.max_turn_tokens}; set "
        "a smaller one, or {key}=null",
    ),
    Unused(
        "Config",
        ("sft.lossy_steps",),
        lambda s: 0 < s.sft.steps <= (s.sft.lossy_steps or 0) + (s.toy.warmup_steps if s.toy else 0),
        "{key} is {value}, which leaves no step for complete notes: SFT has {s.sft.steps} (sft.steps), of which a toy "
        "begins with toy.warmup_steps of copying; set a smaller one, or {key}=null",
    ),
    # --- an index
    Unused(
        "BuildSettings",
        ("encoder", "faiss_file", *_DENSE, "cache", "keep_embeddings"),
        lambda s: s.kind in ("bm25", "tantivy"),
        "{key} would do nothing for an index of kind {s.kind}, which has no vectors: use kind dense or hybrid",
    ),
    Unused(
        "BuildSettings",
        ("lexical",),
        lambda s: s.kind != "hybrid",
        "{key} would do nothing for an index of kind {s.kind}: it is the one half of kind hybrid",
    ),
    Unused(
        "BuildSettings",
        ("title_weight",),
        lambda s: s.kind == "dense",
        "{key} would do nothing for an index of kind dense, which looks up no words",
    ),
    Unused(
        "BuildSettings",
        (*_DENSE_OF_BUILD, "cache", "keep_embeddings"),
        lambda s: s.faiss_file is not None,
        "{key} would do nothing beside faiss_file, which is taken as it is: unset one of the two",
    ),
    # --- the policy
    Unused(
        "SamplerSettings",
        ("gpu_memory_fraction", "kv_cache_mib", "max_rows", "dtype", "compile", "check_weights"),
        lambda s: s.engine != "vllm",
        "engine is {s.engine}, so {key}={value!r} would do nothing; unset it, or set engine=vllm",
    ),
    # --- training
    Unused(
        "OptimSettings",
        ("muon_lr",),
        lambda s: s.kind != "muon",
        "{key} does nothing with kind {s.kind}: set kind to muon",
    ),
    Unused(
        "LossSettings",
        ("kl_coef",),
        lambda s: s.kl == "none",
        "{key} {value:g} does nothing with kl none: choose k1, k2 or k3",
    ),
    Unused(
        "LossSettings",
        ("kl",),
        lambda s: s.kl_coef == 0,
        "{key} {value} does nothing with kl_coef 0: give a positive one (verl's is 0.001)",
    ),
    Unused(
        "SftSettings",
        ("lossy_steps",),
        lambda s: not s.expert.loss,
        "{key} is {value}, but expert.loss is 0, so no step loses a fact; set a loss, or {key}=null",
    ),
    Unused(
        "SftSettings",
        ("lossy_steps",),
        lambda s: s.rollouts,
        "{key} does nothing with rollouts, which are shown as they are; set {key}=null",
    ),
    # --- rewards
    Unused(
        "ProbeSettings",
        ("separators_are_gold",),
        lambda s: not s.joiner,
        "{key} does nothing with an empty joiner: set one of the two back",
    ),
    Unused(
        "ProbeSettings",
        ("separators_are_gold",),
        lambda s: s.objectives == "averaged",
        "{key} does nothing with objectives averaged: a joiner belongs to none",
    ),
    Unused(
        "LookaheadSettings",
        ("gamma",),
        lambda s: s.k == 0,
        "{key} does nothing with k 0: set k to the number of tool results to look ahead",
    ),
    Unused(
        "MemorySettings",
        ("threshold_value", "threshold_quantile"),
        lambda s: s.threshold == "none",
        "{key} does nothing with threshold none: choose a threshold",
    ),
    Unused(
        "MemorySettings",
        ("threshold_value",),
        lambda s: s.threshold_quantile is not None,
        "{key} does nothing beside threshold_quantile: set one of the two",
    ),
    Unused(
        "MemorySettings",
        ("empty_is_one",),
        lambda s: s.threshold != "independent",
        "{key} belongs to threshold independent, not {s.threshold}",
    ),
    Unused(
        "MemorySettings",
        ("full_policy",),
        lambda s: s.baseline == "none",
        "{key} {value} does nothing with baseline none: use baseline full, visible or previous_note",
    ),
    Unused(
        "MemorySettings",
        ("ratio_eps",),
        lambda s: s.reward == "difference",
        "{key} does nothing with reward difference: use reward log_ratio or compression",
    ),
    Unused(
        "MemorySettings",
        ("ratio_eps",),
        lambda s: s.reward == "compression" and s.baseline == "none",
        "{key} does nothing with reward compression and baseline none, where nothing is divided by P(base)",
    ),
    Unused(
        "MemorySettings",
        ("length_limit_tokens",),
        lambda s: not s.length_penalty,
        "{key} does nothing with length_penalty 0: set a penalty",
    ),
    Unused(
        "MemorySettings",
        ("min_pool",),
        lambda s: s.pool == "question",
        "{key} does nothing with pool question, which has no larger pool to fall back to: use pool turn",
    ),
    Unused(
        "MemorySettings",
        ("min_pool",),
        lambda s: s.small_pool == "original",
        "{key} does nothing with small_pool original, which never falls back",
    ),
    Unused(
        "MemorySettings",
        ("fade_batches",),
        lambda s: s.weight == 0,
        "{key} does nothing with weight 0, which gives no memory advantage at all",
    ),
    Unused(
        "MemorySettings",
        ("gate",),
        lambda s: s.weight == 0,
        "{key} {value} does nothing with weight 0, which gives no memory advantage at all",
    ),
)


def unused(settings: Any) -> str | None:
    """The first setting that would do nothing, as a sentence with the remedy; None when there is none."""
    for rule in TABLE:
        if rule.of == type(settings).__name__ and rule.when(settings):
            for key in rule.keys:
                value, default = _value_and_default(settings, key)
                if value != default if rule.is_set is None else rule.is_set(settings, key):
                    return rule.sentence.format(key=key, value=value, s=settings)
    return None


def _value_and_default(settings: Any, key: str) -> tuple[Any, Any]:
    *sections, name = key.split(".")
    for section in sections:
        settings = getattr(settings, section)
    return getattr(settings, name), type(settings).model_fields[name].get_default(call_default_factory=True)
