"""`mempo chat`: questions typed in, the agent's turns printed as they come."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from mempo.config import Resolved
from mempo.config.rollout import DecodingSettings
from mempo.errors import UserError
from mempo.progress import say
from mempo.rollout.agent import Agent, Job, run_rollouts
from mempo.rollout.interfaces import BuiltContext, Context, InteractiveEnvironment, Sampler
from mempo.rollout.question import Question
from mempo.rollout.tokenizer import Tokenizer
from mempo.rollout.trajectory import Trajectory, Turn
from mempo.rollout.turn_text import note_text, thoughts
from mempo.run.evaluate import agents_of, open_local, open_served, specs_of
from mempo.setup import check_window, load_data
from mempo.view.text import changes, visible

_STYLES = {"ins": "green", "del": "red strike", "": ""}


def chat(resolved: Resolved, model_path: str | None, console: Console, show_context: bool = False) -> None:
    """Ask until the input ends. `model_path` None: the model is behind `server.*`.

    Raises:
        UserError: nothing to search, no such model; or an environment whose questions cannot be typed.
    """
    config = resolved.config
    opened = open_local(config, model_path) if model_path is not None else open_served(config, console)
    try:
        check_window(config, opened.window)
        with tempfile.TemporaryDirectory() as work:
            data = load_data(config, Path(work), train_too=False)
            if isinstance(data.environment, InteractiveEnvironment):
                raise UserError(
                    f"the environment {data.environment.name} plays questions that it drew itself, so none can be "
                    "typed; use mempo eval and mempo view"
                )
            agent = agents_of(config, specs_of(config)[:1], opened, data)[0]
            sampler, _ = opened.load()
            say(console, f"agent {agent.name}; an empty line ends", style="dim")
            settings = config.evaluate
            decoding = DecodingSettings(settings.temperature, settings.top_p, settings.top_k)
            answer_all(agent, sampler, decoding, config.seed, console, show_context, lambda: _typed(console))
    finally:
        opened.close()


def answer_all(
    agent: Agent,
    sampler: Sampler,
    decoding: DecodingSettings,
    seed: int,
    console: Console,
    show_context: bool,
    ask: Callable[[], str],
) -> list[Trajectory]:
    """Play what `ask` returns until it returns nothing, and print it as it comes."""
    played = []
    while text := ask():
        screen = _Screen(console, agent.renderer.tokenizer, show_context)
        watched = dataclasses.replace(agent, context=_Watched(agent.context, screen))
        job = Job(Question(f"chat-{len(played)}", text, None), 0, (seed, "chat", len(played)))
        try:
            played += asyncio.run(run_rollouts(watched, sampler, [job], decoding))
        except KeyboardInterrupt:
            say(console, "stopped; ask another, or end with an empty line", style="dim")
            continue
        screen.end(played[-1])
    return played


def _typed(console: Console) -> str:
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        return console.input("[bold]question>[/bold] ").strip()
    return ""


@dataclasses.dataclass
class _Watched:
    """A context that shows what it is given and what it makes of it: it is asked before every turn."""

    inner: Context
    screen: _Screen

    @property
    def name(self) -> str:
        return self.inner.name

    def build(self, question_ids: Sequence[int], turns: Sequence[Turn], limit_tokens: int) -> BuiltContext:
        if turns:
            self.screen.turn(turns[-1])
        built = self.inner.build(question_ids, turns, limit_tokens)
        self.screen.sees(len(turns), built, len(question_ids))
        return built


class _Screen:
    def __init__(self, console: Console, tokenizer: Tokenizer, show_context: bool) -> None:
        self._console, self._tokenizer, self._show_context = console, tokenizer, show_context
        self._note: str | None = None
        self._shown = 0

    def sees(self, index: int, built: BuiltContext, question_tokens: int) -> None:
        carried = len(built.ids) - question_tokens
        cut = f", {built.cut_tokens} were cut" if built.cut_tokens else ""
        self._say("", f"turn {index + 1}: sees {question_tokens} tokens of question and carries {carried}{cut}", "dim")
        if self._show_context:
            self._say("context", self._tokenizer.decode(built.ids), "dim")

    def turn(self, turn: Turn) -> None:
        self._shown += 1
        note = note_text(turn, self._tokenizer)
        if note is not None:
            pieces = changes(self._note, note)
            self._print("note", Text.assemble(*((text, _STYLES[kind]) for kind, text in pieces)))
            self._note = note
        for thought in thoughts(turn, self._tokenizer):
            self._say("thinks", thought, "italic")
        if turn.parsed.action is not None:
            self._say(turn.parsed.action.kind, turn.parsed.action.text, "bold")
        else:
            self._say(turn.parsed.outcome.value, self._tokenizer.decode(turn.own_ids), "yellow")
        if turn.observation is not None:
            self._say("found", self._tokenizer.decode(turn.observation.ids).strip(), "cyan")

    def end(self, played: Trajectory) -> None:
        for turn in played.turns[self._shown :]:
            self.turn(turn)
        what = visible(f"{played.stop.value}{f' ({played.error})' if played.error else ''}")
        self._say("", f"{what}: {len(played.turns)} turns, at most {played.peak_context_tokens} tokens in sight", "dim")

    def _say(self, name: str, text: str, style: str) -> None:
        self._print(name, Text(visible(text), style))

    def _print(self, name: str, text: Text) -> None:
        if name:
            text = Text(f"{name:>8}  ", "dim") + Text("\n" + " " * 10).join(text.split("\n"))
        self._console.print(text, soft_wrap=True)
