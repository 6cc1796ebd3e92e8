"""Agents by name: what each sees, which grammar judges it, and what a wrong name gets."""

from __future__ import annotations

import pytest

from mempo.config import resolve
from mempo.config.evaluate import agent_spec, agent_specs
from mempo.config.rollout import PromptSettings
from mempo.errors import ConfigError
from mempo.evaluate.agents import instructions
from mempo.rollout.protocol import TurnGrammar, parse_turn
from mempo.run.evaluate import Opened, agents_of, specs_of
from tests.train.fakes import TOKENIZER


@pytest.mark.parametrize(
    ("name", "context", "notes", "tools"),
    [
        ("memory", "memory", "required", True),
        ("full", "full", "required", True),
        ("react", "react", "forbidden", True),
        ("last_turn", "last_turn", "required", True),
        ("generations", "generations", "required", True),
        ("window(3)", "window(3)", "required", True),
        ("no_tools", "react", "forbidden", False),
        ("my.module:context", "my.module:context", "required", True),
    ],
)
def test_names(name: str, context: str, notes: str, tools: bool) -> None:
    spec = agent_spec(name, "required", "optional")
    assert (spec.name, spec.context, spec.notes, spec.tools) == (name, context, notes, tools)


def test_history_with_notes_of_a_configuration_without() -> None:
    assert agent_spec("memory", "forbidden", "forbidden").notes == "required"
    assert agent_spec("full", "forbidden", "forbidden").notes == "required"
    assert agent_spec("last_turn", "forbidden", "forbidden").notes == "forbidden"
    assert agent_spec("window( 2 )", "optional", "optional").context == "window(2)"


@pytest.mark.parametrize(
    ("names", "parts"),
    [
        (["memry"], "did you mean 'memory'"),
        (["window(0)"], "unknown agent"),
        (["memory", "memory"], "is given twice"),
    ],
)
def test_wrong_names(names: list[str], parts: str) -> None:
    with pytest.raises(ConfigError, match=parts):
        agent_specs(names, "required", "optional")
    with pytest.raises(ConfigError, match=parts):
        resolve("quickstart", [f"evaluate.agents=[{', '.join(names)}]"])


def test_two_names_with_one_file_are_refused() -> None:
    window, own = "window(2)", "window:2"
    specs = agent_specs([window], "required", "optional")
    assert specs[0].file_name == agent_spec(own, "required", "optional").file_name
    with pytest.raises(ConfigError, match=r"would share the file window-2\.jsonl"):
        agent_specs([window, own], "required", "optional")


def opened() -> Opened:
    return Opened(TOKENIZER, PromptSettings(template="plain", force_mem=True), None, {}, lambda: (None, None))  # type: ignore[return-value, arg-type]


def test_every_agent_is_judged_by_its_own_grammar() -> None:
    from mempo.retrieval.document import Retriever
    from mempo.setup import Data

    config = resolve("quickstart", ["evaluate.agents=[memory, react, no_tools]", "prompt.force_mem=true"]).config
    retriever: Retriever = object()  # type: ignore[assignment]
    memory, react, no_tools = agents_of(config, specs_of(config), opened(), Data(None, [], [], retriever))
    noted = "<mem>n</mem><think>t</think><answer>a</answer>"
    assert not parse_turn(noted, 1, memory.grammar).violations
    assert parse_turn(noted, 1, react.grammar).violations == {"memory_present"}
    plain = noted.removeprefix("<mem>n</mem>")
    assert parse_turn(plain, 1, memory.grammar).violations == {"memory_present"}
    assert not parse_turn(plain, 1, react.grammar).violations
    assert memory.renderer.forced(1)
    assert not react.renderer.forced(1)  # nothing that its grammar forbids is written for it
    assert no_tools.grammar.actions == ("answer",)
    assert not no_tools.tools
    assert no_tools.limits.max_turns == 1
    assert memory.limits == react.limits == config.limits


def test_the_configurations_own_agent_is_the_default() -> None:
    (spec,) = specs_of(resolve("quickstart").config)
    assert (spec.name, spec.notes) == ("memory", "required")


@pytest.mark.parametrize("named", [[], ["evaluate.agents=[full, memory]"]])
def test_the_own_agent_keeps_its_grammar_without_notes(named: list[str]) -> None:
    without = ["agent.notes=forbidden", "agent.context=full", "rl.memory_signal=false"]
    own, *others = specs_of(resolve("quickstart", [*without, *named]).config)
    assert (own.name, own.context, own.notes, own.first_note) == ("full", "full", "forbidden", "forbidden")
    assert [(other.name, other.notes) for other in others] == ([("memory", "required")] if named else [])
    plain = "<think>t</think><answer>a</answer>"
    assert not parse_turn(plain, 1, TurnGrammar(own.notes, own.first_note)).violations


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["prompt.force_mem=true"], "set prompt.force_mem=false, or agent.notes=required"),
        (["agent.first_note=required"], "set agent.first_note=optional"),
        (["limits.max_note_tokens=9"], "no note to limit; set limits.max_note_tokens=null"),
    ],
)
def test_an_agent_without_notes_that_asks_for_notes_is_refused(settings: list[str], says: str) -> None:
    without = ["agent.notes=forbidden", "agent.context=full", "rl.memory_signal=false"]
    resolve("quickstart", without)
    with pytest.raises(ConfigError, match=says):
        resolve("quickstart", [*without, *settings])


def test_notes_that_have_no_place_are_refused() -> None:
    for limit in ("72", "90"):  # the recipe's turns have 72 tokens
        with pytest.raises(ConfigError, match=f"limits.max_note_tokens {limit} is never reached"):
            resolve("quickstart", [f"limits.max_note_tokens={limit}"])
    with pytest.raises(ConfigError, match="so no note is ever written"):
        resolve("quickstart", ["limits.max_turns=1", "agent.first_note=forbidden"])
    resolve("quickstart", ["limits.max_turns=1"])  # the first turn may hold one


@pytest.mark.parametrize("actions", [("search", "access", "answer"), ("search", "answer"), ("answer",)])
@pytest.mark.parametrize("notes", ["required", "forbidden"])
def test_instructions_name_what_the_grammar_has(actions: tuple[str, ...], notes: str) -> None:
    text = instructions(TurnGrammar(notes, "optional", actions))  # type: ignore[arg-type]
    assert text.count("{question}") == 1
    for action in ("search", "access", "answer"):
        assert (f"<{action}>" in text) == (action in actions)
    assert ("<mem>" in text) == (notes == "required" and len(actions) > 1)
