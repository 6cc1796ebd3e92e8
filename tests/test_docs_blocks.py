"""Every code block of the pages is true: Python runs, commands and settings exist, YAML is a configuration.

A Python block that cannot run says why in a comment above it, `<!-- not run: reason -->`. Commands are parsed by the
real command line and not run: they take minutes, a model or a GPU.
"""

from __future__ import annotations

import ast
import doctest
import gzip
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from mempo.cli.main import app
from mempo.config import Config
from mempo.config.base import Settings, leaves, long_form
from mempo.config.describe import ROOTS, described
from mempo.config.overrides import parse_override
from mempo.config.resolve import BUILDS_ON
from mempo.study.settings import Study

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "bench" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
LANGUAGES = {
    *("python", "py", "pycon", "sh", "bash", "yaml", "json"),  # checked here
    *("text", "nginx", "haproxy"),  # output and pictures; other programs' files
}
FENCE = re.compile(
    r"(<!-- not run: (?P<why>[^>]+) -->\n)?"
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<code>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
INLINE = re.compile(r"`(mempo [a-z][^`\n]*)`")
OPENED = re.compile(r"^ *```", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    language: str
    code: str
    why_not: str | None


def blocks(page: Path, *languages: str) -> list[Block]:
    found = [Block(m["language"], m["code"], m["why"]) for m in FENCE.finditer(page.read_text("utf-8"))]
    return [block for block in found if not languages or block.language in languages]


def pages_with(*languages: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, *languages)]


def each(pages: list[Path]) -> Any:
    return pytest.mark.parametrize("page", pages, ids=lambda page: str(page.relative_to(ROOT)))


@each(PAGES)
def test_every_block_says_what_it_is(page: Path) -> None:
    assert {block.language for block in blocks(page)} <= LANGUAGES
    assert 2 * len(blocks(page)) == len(OPENED.findall(page.read_text("utf-8")))  # none is missed by the pattern


# --- Python --------------------------------------------------------------------------------------------------------


@each([page for page in pages_with("python") if page.name != "README.md"])  # README: tests/test_public_api.py
def test_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    documents = [{"title": name, "text": f"{name} is a capital."} for name in ("Paris", "Lima")]
    asked = [{"id": f"q{n}", "question": f"Where is {n}?", "answer": f"there {n}"} for n in range(7)]
    with gzip.open("corpus.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in documents)
    Path("questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked), "utf-8")
    names: dict[str, Any] = {"__name__": page.stem}
    for block in blocks(page, "python"):
        code = compile(block.code, str(page), "exec")
        exec(code if block.why_not is None else _imports(block.code), names)


def _imports(code: str) -> Any:
    """What a block that does not run imports, at least."""
    tree = ast.parse(code)
    tree.body = [line for line in tree.body if isinstance(line, ast.Import | ast.ImportFrom)]
    return compile(tree, "imports", "exec")


@each(pages_with("py"))
def test_signatures_are_python(page: Path) -> None:
    for block in blocks(page, "py"):
        ast.parse(block.code)


@each(pages_with("pycon"))
def test_examples_print_what_they_show(page: Path) -> None:
    result = doctest.testfile(str(page), module_relative=False)
    assert (result.attempted >= len(blocks(page, "pycon")), result.failed) == (True, 0)


# --- commands ------------------------------------------------------------------------------------------------------

TARGETS = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


def commands(code: str) -> Iterator[list[str]]:
    """The words of each `mempo` and `make` command, what stands before it left out."""
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        words = [word for word in words if word != "&"]
        for n, word in enumerate(words):
            if word.rpartition("/")[2] == "mempo" or (word == "make" and n == 0):
                yield ["mempo" if word != "make" else "make", *words[n + 1 :]]
                break


def parsed(words: list[str], whole: bool = True) -> tuple[str, list[str]]:
    """A command of ours and its arguments. Raises what click raises: no such option, an option without its value (where
    the command is `whole`)."""
    command: Any = typer.main.get_command(app)
    name, left = "mempo", words
    while hasattr(command, "commands") and (whole or left):
        assert left, f"{name} is no command"
        assert left[0] in command.commands, f"{name} has no command {left[0]}"
        name, command, left = f"{name} {left[0]}", command.commands[left[0]], left[1:]
    context = command.context_class(command, info_name=name, **command.context_settings)
    given = [*left, "value"] if not whole and left and left[-1].startswith("--") else left
    _, extra, _ = command.make_parser(context).parse_args(list(given))
    assert not whole or extra == [], f"{name} takes no {extra}"
    return name, left


def check_settings(command: str, words: list[str]) -> None:
    roots = [root for name, root in ROOTS.items() if name in (command, "a configuration")]
    for word in words:
        if re.match(r"[a-z_]+(\.[a-z_]+)*=", word):
            assert any(_is_setting(root, word) for root in roots), f"{command}: {word}"


def _is_setting(root: type[Settings], argument: str) -> bool:
    layer = long_form(root, parse_override(argument))
    return all(_is_known(root, key) for key, _ in leaves(layer))


@cache
def _kinds(root: type[Settings]) -> dict[str, str]:
    return {one.key: one.kind for one in described(root)}


def _is_known(root: type[Settings], key: str) -> bool:
    """A key, or one of the user's own inside a setting that is a mapping."""
    known = _kinds(root)
    above = next(
        (key[:end] for end in range(len(key), 0, -1) if key[:end] in known and key[end : end + 1] in ("", ".")), ""
    )
    return above == key or (bool(above) and "mapping" in known[above])


@each(pages_with("sh", "bash"))
def test_commands_exist(page: Path) -> None:
    for block in blocks(page, "sh", "bash"):
        for name, *words in commands(block.code):
            if name == "make":
                assert words[0] in TARGETS, words
            else:
                check_settings(*parsed(words))


@each([page for page in PAGES if INLINE.search(page.read_text("utf-8")) and page.name != "cli.md"])
def test_commands_within_sentences_exist(page: Path) -> None:
    for text in INLINE.findall(page.read_text("utf-8")):
        words = [word for word in shlex.split(text)[1:] if word not in ("…", "KEY=VALUE…", "[key=value", "...]")]
        check_settings(*parsed(words, whole=False))


def test_the_check_sees_what_is_wrong() -> None:
    assert list(commands("A=1 .venv/bin/mempo eval runs/my \\\n  --agents react  # said\nls")) == [
        ["mempo", "eval", "runs/my", "--agents", "react"]
    ]
    assert parsed(["index", "build", "c.jsonl", "--out", "index"])[0] == "mempo index build"
    with pytest.raises(AssertionError, match="has no command"):
        parsed(["evaluate", "runs/my"])
    with pytest.raises(Exception, match="--agent"):
        parsed(["eval", "runs/my", "--agent", "react"])
    check_settings("mempo train", ["rl.steps=2", "data.where={level: hard}", "memory=original", "runs/a=b"])
    for wrong in ("rl.step=2", "memory.pol=turn", "rl.steps.more=1"):
        with pytest.raises(AssertionError):
            check_settings("mempo train", [wrong])


# --- data ----------------------------------------------------------------------------------------------------------


@each(pages_with("yaml"))
def test_yaml_is_a_configuration(page: Path) -> None:
    for block in blocks(page, "yaml"):
        for text in re.split(r"\n---\n", block.code):
            layer = yaml.safe_load(text)
            if "arms" in layer:
                Study.model_validate(layer)
            else:
                layer.pop(BUILDS_ON, None)
                assert [key for key, _ in leaves(long_form(Config, layer)) if not _is_known(Config, key)] == []


@each(pages_with("json"))
def test_json_is_json(page: Path) -> None:
    for block in blocks(page, "json"):
        assert json.loads(block.code)
