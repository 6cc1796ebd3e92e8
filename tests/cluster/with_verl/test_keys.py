# pyright: reportMissingImports=false
"""The table of verl's keys against the verl that is installed: keys have rows, rows are keys, kinds are right."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import verl
import yaml

from mempo.cluster.verl_keys import KINDS, REST, row_of, rows

LISTED = Path(str(verl.__file__)).parent / "trainer" / "config" / "_generated_ppo_trainer.yaml"
OURS = ("defaults", "hydra", "mempo", "ray_kwargs.ray_init.address", "trainer.remove_previous_ckpt_in_save")
"""Ours, Hydra's, and one that verl's trainer reads though none of its files has it."""


def keys(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """`(key, default)` of everything in verl's files, and of the fields of the dataclasses that they name."""
    fields = dict(_fields(section.get("_target_")))
    for name, default in {**fields, **section}.items():
        if name == "_target_":
            continue
        if isinstance(default, Mapping) and default:
            yield from keys(default, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", default


def _fields(target: str | None) -> Iterator[tuple[str, Any]]:
    if target is None:
        return
    module, _, name = target.rpartition(".")
    for field in dataclasses.fields(getattr(importlib.import_module(module), name)):
        if not field.name.startswith("_") and field.name != "extra":
            yield field.name, field.default if field.default is not dataclasses.MISSING else None


def listed() -> dict[str, Any]:
    return dict(keys(yaml.safe_load(LISTED.read_text("utf-8"))))


def test_every_key_of_verl_has_a_row() -> None:
    assert [key for key in listed() if row_of(key) is None] == []


def test_every_row_is_a_key_of_verl_or_a_section() -> None:
    known = listed()
    strange = [
        key
        for key in rows()
        if not key.endswith(f".{REST}")
        and not any(f"{one}.".startswith(f"{key}.") for one in known)
        and key not in OURS
    ]
    assert strange == []


def test_verls_defaults_are_of_the_kind_that_the_table_says() -> None:
    for key, default in listed().items():
        row = row_of(key)
        assert row is not None
        if row.rule != "allowed" or row.key != key or default is None or str(default).startswith("${"):
            continue
        assert KINDS[row.text.removesuffix("?")].fits(default), (key, default)
