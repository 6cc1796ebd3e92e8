"""A corpus row as users write it, to a document and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mempo.retrieval.document import Document
from mempo.storage.jsonl import ID_KEYS, json_name, valid_text

TEXT_KEYS = ("contents", "text", "passage", "body")
COLUMNS = frozenset({*ID_KEYS, *TEXT_KEYS, "title", "url"})


def document_of(row: Mapping[str, Any], default_id: str) -> Document:
    """The document in a row of one of these forms; raises ValueError with the reason for any other.

    - `{"id", "contents"}`, `{"id", "contents", "url"}`, `{"url", "contents"}`: the title is the first line of the
      contents when that line stands in double quotes, else empty;
    - `{"_id", "title", "text"}` and `{"id"?, "title"?, "text", "url"?}`; `passage` and `body` are texts too.

    Ids may be strings or integers and stand under any of `ID_KEYS`; a row without one gets `default_id`.
    """
    if row.get("contents") is not None:
        title, text = split_contents(_string(row, "contents"))
    elif (key := next((key for key in TEXT_KEYS if row.get(key) is not None), None)) is not None:
        title, text = _string(row, "title"), _string(row, key)
    else:
        raise ValueError(f'needs "contents" or "text"; it has {_keys(row)}')
    url = valid_text(_string(row, "url")) or None
    return Document(id=_id(row, default_id), title=valid_text(title), text=valid_text(text), url=url)


def split_contents(contents: str) -> tuple[str, str]:
    """Title and body of `"Title"\\nbody`. A first line without quotes belongs to the body: the title is empty."""
    first, _, rest = contents.partition("\n")
    first = first.strip()
    if len(first) >= 2 and first[0] == first[-1] == '"':
        return first[1:-1], rest
    return "", contents


def contents_of(document: Document) -> str:
    """The document as `"Title"\\nbody`, always with a title line: common clients take the first line for the title."""
    return f'"{" ".join(document.title.splitlines())}"\n{document.text}'


def row_of(document: Document) -> dict[str, str]:
    """The document as a row of the `{"id", "contents"}` form, with `url` where there is one."""
    row = {"id": document.id, "contents": contents_of(document)}
    return row if document.url is None else {**row, "url": document.url}


def _id(row: Mapping[str, Any], default: str) -> str:
    for key in ID_KEYS:
        value = row.get(key)
        if isinstance(value, str | int) and not isinstance(value, bool):
            return valid_text(str(value))
        if value is not None:
            raise ValueError(f'"{key}" must be a string or an integer, not {json_name(value)}')
    return default


def _string(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f'"{key}" must be a string, not {json_name(value)}')
    return value


def _keys(row: Mapping[str, Any]) -> str:
    return ", ".join(f'"{key}"' for key in list(row)[:8]) or "no keys"
