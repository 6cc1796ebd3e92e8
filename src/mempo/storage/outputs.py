"""One rule for every command that writes into a folder which somebody names.

- A file that is there already is not written over, unless the same command made it in the same way. The command ends
  before it writes anything, and names what is there.
- `--force` replaces what mempo made. A file that mempo did not make gets out of the way as `NAME.kept`; all others stay
  where they are. Nothing of anybody else's is ever deleted.

What mempo made is known from `.mempo.json` in the folder: by product (`index`, `scores`, …) how it was made, and the
files with their bytes. A file of another size than it says was written by somebody else since.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, TypeAdapter
from typing_extensions import TypedDict

from mempo.errors import UserError
from mempo.storage.atomic import atomic_file, atomic_folder, temporary_folder
from mempo.storage.read_files import exists, read_json

RECORD = ".mempo.json"
_SHOWN = 5


def _within(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError("a path that leaves the folder")
    return name


class Made(TypedDict):
    """`made_by`: the command and what its result depends on. `files`: bytes by path within the folder."""

    made_by: str
    files: dict[Annotated[str, AfterValidator(_within)], int]


_RECORD = TypeAdapter(dict[str, Made])
Legacy = Callable[[Path], Iterable[str]]
"""The files of a folder without a record that an earlier release made."""


def nothing(folder: Path) -> Iterable[str]:
    return ()


@contextmanager
def output_files(
    folder: Path,
    product: str,
    made_by: str,
    force: bool = False,
    legacy: Legacy = nothing,
    replaces: bool = False,
) -> Iterator[Path]:
    """Yields an empty folder to write files into; when the block ends well they take their places in `folder`.
    `replaces`: what the product had before and has no more goes.

    Raises:
        UserError: files that may not be written over; nothing has changed then.
    """
    _refuse_file(folder)
    with temporary_folder(folder / product) as temporary:
        yield temporary
        names = _files(temporary)
        refuse_taken(folder, names, product, made_by, force, legacy)
        made = _made(folder, product, legacy)
        for name in names:
            target = folder / name
            if _is_foreign(target, name, made):
                os.rename(target, _kept(target))
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(temporary / name, target)
        before = [n for n in made["files"] if n not in names and not _is_foreign(folder / n, n, made)]
        for name in before if replaces else ():
            (folder / name).unlink(missing_ok=True)
        kept = [] if replaces else [name for name in before if exists(folder / name)]
        _write_record(folder, folder, product, made_by, [*names, *kept])


@contextmanager
def output_folder(
    folder: Path, product: str, made_by: str, force: bool = False, legacy: Legacy = nothing, alone: bool = True
) -> Iterator[Path]:
    """The same for a product that is a folder: it is replaced in one step, and whatever else lies in it stays in it.

    `alone`: such a folder is new or empty, or holds this product; else `refuse_others` has been asked before.
    """
    if alone:
        refuse_others(folder, product, made_by, force, legacy)
    with atomic_folder(folder) as temporary:
        yield temporary
        names = _files(temporary)
        made = _made(folder, product, legacy)
        for name in _files(folder):
            if name != RECORD and (name not in made["files"]):
                target = temporary / name
                target.parent.mkdir(parents=True, exist_ok=True)
                _link(folder / name, _kept(target) if exists(target) else target)
        _write_record(folder, temporary, product, made_by, names)


def refuse_taken(
    folder: Path, names: Iterable[str], product: str, made_by: str, force: bool = False, legacy: Legacy = nothing
) -> None:
    """For commands that know their files beforehand, and would work for long before they write.

    Raises:
        UserError: files that may not be written over.
    """
    _refuse_file(folder)
    made = _made(folder, product, legacy)
    foreign = [name for name in names if _is_foreign(folder / name, name, made)]
    _refuse(folder, foreign, _otherwise(made, made_by), force)


def refuse_others(
    folder: Path, product: str, made_by: str | None, force: bool = False, legacy: Legacy = nothing
) -> None:
    """The same for a product that is a folder. `made_by` None: however it was made.

    Raises:
        UserError: the folder holds anything but this product.
    """
    _refuse_file(folder)
    made = _made(folder, product, legacy)
    foreign = [name for name in _files(folder) if name != RECORD and name not in made["files"]]
    _refuse(folder, foreign, None if made_by is None else _otherwise(made, made_by), force)


def _refuse(folder: Path, foreign: list[str], otherwise: str | None, force: bool) -> None:
    if force or not (foreign or otherwise):
        return
    shown = ", ".join(foreign[:_SHOWN]) + (f" and {len(foreign) - _SHOWN} more" if len(foreign) > _SHOWN else "")
    there = [f"{shown}, which this command did not make"] if foreign else []
    there += [f"what was made by {otherwise}"] if otherwise else []
    raise UserError(
        f"{folder} holds {', and '.join(there)}; nothing was written. Name another folder, or --force replaces what "
        "mempo made and keeps the rest"
    )


def _otherwise(made: Made, made_by: str) -> str | None:
    return made["made_by"] if made["files"] and made["made_by"] not in ("", made_by) else None


def _made(folder: Path, product: str, legacy: Legacy) -> Made:
    """The product in a folder, with the files of it that are there; without any where there is none."""
    known = _read_record(folder).get(product)
    if known is None:
        return {"made_by": "", "files": dict.fromkeys(legacy(folder), -1)}
    return known


def _is_foreign(path: Path, name: str, made: Mapping[str, Any]) -> bool:
    if not exists(path):
        return False
    size = made["files"].get(name)
    return size is None or not path.is_file() or (size >= 0 and path.stat().st_size != size)


def _read_record(folder: Path) -> dict[str, Made]:
    path = folder / RECORD
    return read_json(path, _RECORD, "remove it, and what lies beside it is taken to be yours") if exists(path) else {}


def _write_record(old: Path, folder: Path, product: str, made_by: str, names: Iterable[str]) -> None:
    files = {name: (folder / name).stat().st_size for name in sorted(names)}
    record = {**_read_record(old), product: {"made_by": made_by, "files": files}}
    with atomic_file(folder / RECORD) as temporary:
        temporary.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _files(folder: Path) -> list[str]:
    """Paths within a folder, `/` between their parts; links count as files, and what a writer makes just now does not
    count."""
    found = []
    for parent, folders, names in os.walk(folder):
        links = [name for name in folders if Path(parent, name).is_symlink()]
        found += [Path(parent, name).relative_to(folder).as_posix() for name in (*names, *links)]
    return sorted(found)


def _kept(target: Path) -> Path:
    """A free name for a file that is in the way."""
    names = (target.with_name(f"{target.name}.kept{'' if n == 1 else f'-{n}'}") for n in range(1, 10_000))
    return next(name for name in names if not exists(name))


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # a file system without links
        shutil.copy2(source, target, follow_symlinks=False)


def _refuse_file(folder: Path) -> None:
    if exists(folder) and not folder.is_dir():
        raise UserError(f"{folder} is a file; name a folder")
