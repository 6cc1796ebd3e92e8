"""YAML as people expect it: the core schema of YAML 1.2, one mapping a file, every key once.

PyYAML's parser gives the events; values are made from them here, because its own reader follows YAML 1.1 (`1e-6` is a
text there, `on` is true, `1:30` is ninety), lets a key be given twice, and follows anchors without end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from mempo.errors import ConfigError

MAX_CHARS = 1 << 20
MAX_DEPTH = 50
MAX_VALUES = 50_000
"""Of a document, what anchors stand for counted as often as it is named."""

_INT = re.compile(r"[-+]?[0-9][0-9_]*")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_BREAKS = frozenset("\x85\u2028\u2029")
_WORDS = {"": None, "~": None} | {
    spelled: value
    for word, value in (("null", None), ("true", True), ("false", False))
    for spelled in (word, word.capitalize(), word.upper())
}


def read_yaml(file: Path) -> dict[str, Any]:
    """The mapping that a file holds.

    Raises:
        ConfigError: a file that cannot be read as text, or as `load_yaml` does.
    """
    try:
        text = file.read_text("utf-8-sig")  # some editors put a mark before the first character
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read as text ({error})") from error
    return load_yaml(text, str(file))


def load_yaml(text: str, name: str) -> dict[str, Any]:
    """A mapping; an empty document is an empty one. `name`: of the place, for messages.

    Raises:
        ConfigError: not YAML (the place is named), a key that is given twice, no mapping, several documents, or more
            than a configuration can hold.
    """
    data = _load(text, name)
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{name} holds a {type(data).__name__}; a configuration is a mapping of keys to values")
    return data


def load_value(text: str) -> Any:
    """A value of the command line. What does not begin as a list, a mapping or a quoted text does is one word, whatever
    it holds: a number, true, false, null, or the text as it stands.

    Raises:
        ConfigError: a number of thousands of digits.
    """
    text = text.strip()
    if text[:1] in ("[", "{", '"', "'"):
        try:
            return _load(text, "the value")
        except ConfigError:
            return text
    try:
        return plain(text) if text else ""
    except ValueError:
        raise ConfigError(f"a number of {len(text)} digits") from None


def plain(text: str) -> Any:
    """A scalar without quotes, by the core schema; `1_000` is a number too.

    Raises:
        ValueError: a number of thousands of digits.
    """
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _BASED.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _SPECIAL.fullmatch(text):
        return float(text.replace(".", ""))
    return text


def dump_yaml(data: Mapping[str, Any]) -> str:
    """As `load_yaml` reads it back."""
    return yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def dump_flow(value: Any) -> str:
    """One value on one line."""
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, allow_unicode=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")


class _Dumper(yaml.SafeDumper):
    """Puts quotes around texts that either version of YAML would take for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, data: str) -> yaml.ScalarNode:
        # Line breaks of Unicode stay what they are between double quotes alone.
        return self.represent_scalar("tag:yaml.org,2002:str", data, style='"' if _BREAKS & set(data) else None)


_Dumper.add_representer(str, _Dumper.represent_text)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(f"^(?:{_FLOAT.pattern})$"), list("-+.0123456789"))
_Dumper.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(f"^(?:{_BASED.pattern})$"), ["0"])


# --- from events to values -----------------------------------------------------------------------------------------

_UNFINISHED = object()


class _Reader:
    """Values of one document. `anchors`: the value of each, and how many values it stands for, itself included."""

    def __init__(self, name: str, events: Iterator[yaml.Event]) -> None:
        self.name, self.events, self.count = name, events, 0
        self.anchors: dict[str, tuple[Any, int]] = {}

    def refuse(self, event: yaml.Event, fact: str) -> ConfigError:
        return ConfigError(f"{self.name}, line {event.start_mark.line + 1}: {fact}")

    def value(self, event: Any, depth: int = 0) -> Any:
        """The value that begins with `event`, inside `depth` lists and mappings."""
        if isinstance(event, yaml.AliasEvent):
            found, size = self.anchors.get(event.anchor, (None, 0))
            if not size:
                raise self.refuse(event, f"*{event.anchor} names nothing; there is no &{event.anchor} before it")
            if found is _UNFINISHED:
                raise self.refuse(event, f"*{event.anchor} is inside &{event.anchor}: it would contain itself")
            self._counted(event, size)
            return found
        if event.tag not in (None, "!"):
            line = event.start_mark.line + 1
            raise ConfigError(
                f"{self.name} is not valid YAML: line {line} has the tag {event.tag!r}; a configuration holds plain "
                "values"
            )
        before = self.count
        self._counted(event, 1)
        self._remember(event, _UNFINISHED, 1)
        if isinstance(event, yaml.ScalarEvent):
            found = self._scalar(event)
        elif depth == MAX_DEPTH:
            raise self.refuse(event, f"more than {MAX_DEPTH} levels of nesting; a configuration has fewer")
        elif isinstance(event, yaml.SequenceStartEvent):
            found = [self.value(one, depth + 1) for one in self._up_to(yaml.SequenceEndEvent)]
        else:
            found = {}
            for one in self._up_to(yaml.MappingEndEvent):
                key = self._key(one, self.value(one, depth + 1), found)
                found[key] = self.value(next(self.events), depth + 1)
        self._remember(event, found, self.count - before)
        return found

    def _up_to(self, end: type[yaml.Event]) -> Iterator[yaml.Event]:
        while not isinstance(event := next(self.events), end):
            yield event

    def _key(self, event: yaml.Event, key: Any, known: Mapping[Any, Any]) -> Any:
        if isinstance(key, list | dict):
            raise self.refuse(event, f"a key is one word, not a {type(key).__name__}")
        if key == "<<":
            raise self.refuse(event, "<< is of YAML 1.1; write the keys out, or build on another file with recipe:")
        if key in known:
            raise self.refuse(event, f"the key {key!r} is given twice; keep one of the two")
        return key

    def _scalar(self, event: yaml.ScalarEvent) -> Any:
        if not event.implicit[0] or event.style:
            return event.value
        try:
            return plain(event.value)
        except ValueError:
            raise self.refuse(event, f"a number of {len(event.value)} digits") from None

    def _counted(self, event: yaml.Event, size: int) -> None:
        self.count += size
        if self.count > MAX_VALUES:
            raise self.refuse(event, f"more than {MAX_VALUES} values; a configuration has fewer")

    def _remember(self, event: Any, found: Any, size: int) -> None:
        if event.anchor is not None:
            self.anchors[event.anchor] = found, size


def _load(text: str, name: str) -> Any:
    if len(text) > MAX_CHARS:
        raise ConfigError(f"{name} has {len(text)} characters; a configuration has at most {MAX_CHARS}")
    try:
        events = iter(yaml.parse(text, Loader=yaml.SafeLoader))
        reader = _Reader(name, events)
        found, documents = None, 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise reader.refuse(event, "a second document begins; a configuration is one")
                found = reader.value(next(events))
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{name} is not valid YAML: {' '.join(str(error).split())}") from error
    return found
