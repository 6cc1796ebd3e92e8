"""Questions, tool results and turn separators as token ids, and cutting them to a budget.

Rendering is incremental: what the policy sampled is never rendered again, only what stands between its turns is. A chat
template is therefore taken apart once into the scaffold around the contents; outside text is put into it as ids.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from datetime import datetime

from mempo.config.rollout import PromptSettings
from mempo.errors import UserError
from mempo.rollout.interfaces import ToolResult
from mempo.rollout.tokenizer import Tokenizer
from mempo.rollout.trajectory import Observation, ObservationPart

TRUNCATED_MARK = " [truncated]"
_CLOCK = "strftime_now"
_CLOCK_CALL = re.compile(_CLOCK + r"""\(\s*(?P<quote>["'])(?P<format>.*?)(?P=quote)\s*\)""")
_SENTINELS = ("QuestionGoesHere", "AssistantGoesHere", "ObservationGoesHere")


class Renderer:
    """Turns contents into ids for one tokenizer.

    `difference` is None when our incremental rendering of a two-turn conversation equals the chat template's, else a
    sentence that says how they differ (templates that rewrite earlier turns do).

    Raises:
        UserError: `chat` without a chat template, or a template that cannot be taken apart.
    """

    def __init__(self, tokenizer: Tokenizer, settings: PromptSettings | None = None, told: str = "") -> None:
        """`told`: what the policy is told of its tools; it ends the system prompt, or stands before the question where
        `prompt.system` is empty, as for chat templates without a system role."""
        self.tokenizer = tokenizer
        self.settings = settings = settings or PromptSettings()
        if settings.question.count("{question}") != 1:
            raise UserError(f"prompt.question must hold {{question}} once, not {settings.question!r}")
        self._system = f"{settings.system}\n\n{told}" if settings.system and told else settings.system
        before_question = "" if settings.system or not told else f"{told}\n\n"
        has_template = bool(getattr(tokenizer.hf, "chat_template", None))
        if settings.template == "chat" and not has_template:
            raise UserError("prompt.template is chat, but the tokenizer has no chat template; use plain")
        self.chat = _is_chat(tokenizer, settings)
        self.difference: str | None = None
        if self.chat:
            head, tail, before, after = self._chat_scaffold()
        else:
            head = self._bos() + (f"{self._system}\n\n" if self._system else "")
            tail = before = after = "\n"
        tail, self._forced_think = _split_open_think(tail)
        after, _ = _split_open_think(after)
        instruction_before, instruction_after = settings.question.split("{question}")
        encode = tokenizer.encode_trusted
        self._head, self._tail = encode(head + before_question + instruction_before), encode(instruction_after + tail)
        self._before = encode(before)
        self._open = encode("<tool_response>\n")
        self._between = encode("\n")
        self._close = encode("\n</tool_response>" + after)
        self._mark = tokenizer.encode_untrusted(TRUNCATED_MARK)

    @property
    def opens_thought(self) -> bool:
        """The template writes `<think>` for the policy at the beginning of every turn, unless `force_mem` does more."""
        return bool(self._forced_think) and not self.settings.force_mem

    # --- contents --------------------------------------------------------------------------------------------------

    def question(self, text: str) -> tuple[int, ...]:
        """The prompt of turn 1: `[system, question]` and the opening of the reply."""
        return self._head + self.tokenizer.encode_untrusted(text) + self._tail

    def forced(self, turn_index: int) -> tuple[int, ...]:
        """Ids written for the policy at the beginning of turn `turn_index` (0-based)."""
        if self.settings.force_mem and turn_index > 0:
            return self.tokenizer.encode_trusted("<mem>")
        return self.tokenizer.encode_trusted(self._forced_think) if self._forced_think else ()

    def observation(self, result: ToolResult, budget_tokens: int | None = None, after_eos: bool = False) -> Observation:
        """A tool result in its wrapper, cut inside its passages to `budget_tokens` where there is a budget.

        `after_eos`: the turn ended with an end-of-sequence token, so the separator's own is left out.
        """
        before = self._before
        if after_eos and before and before[0] in self.tokenizer.eos_ids:
            before = before[1:]
        parts = [ObservationPart(before + self._open)]
        if result.notice:
            parts.append(ObservationPart(self.tokenizer.encode_untrusted(result.notice)))
        for k, passage in enumerate(result.passages):
            if k or result.notice:
                parts.append(ObservationPart(self._between))
            parts.append(ObservationPart(self.tokenizer.encode_untrusted(passage), cuttable=True))
        parts.append(ObservationPart(self._close))
        observation = Observation(tuple(parts))
        return observation if budget_tokens is None else self.cut(observation, budget_tokens)

    def cut(self, observation: Observation, budget_tokens: int) -> Observation:
        """Shorten the passages, longest first, to fit `budget_tokens`; wrapper and notice stay, what is cut is marked.

        When there is no room for all passages, the last ones go. The result is longer than the budget only when the
        wrapper alone is.
        """
        if len(observation) <= budget_tokens:
            return observation
        parts = list(observation.parts)
        while True:
            lengths = [len(part.ids) for part in parts if part.cuttable]
            room = budget_tokens - sum(len(part.ids) for part in parts if not part.cuttable)
            if room >= len(lengths) * len(self._mark) or len(lengths) <= 1:
                break
            last = max(i for i, part in enumerate(parts) if part.cuttable)
            del parts[last - 1 : last + 1]  # with the separator before it
        if not lengths:
            return Observation(tuple(parts))
        cap = _water_level(lengths, max(room, 0))
        return Observation(tuple(self._cut_part(part, cap) for part in parts))

    def _cut_part(self, part: ObservationPart, cap: int) -> ObservationPart:
        if not part.cuttable or len(part.ids) <= cap:
            return part
        kept = part.ids[: max(cap - len(self._mark), 0)]
        return ObservationPart((kept + self._mark)[:cap], cuttable=True)

    # --- templates -------------------------------------------------------------------------------------------------

    def _bos(self) -> str:
        tokenizer = self.tokenizer.hf
        adds_bos = tokenizer.bos_token_id is not None and tokenizer("").input_ids[:1] == [tokenizer.bos_token_id]
        return tokenizer.bos_token if adds_bos else ""

    def _apply(self, contents: Sequence[str]) -> str:
        """The chat template over alternating user and assistant contents, with the opening of the next reply."""
        messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]
        if self._system:
            messages.insert(0, {"role": "system", "content": self._system})
        try:
            return self.tokenizer.hf.apply_chat_template(
                messages, chat_template=self._dated_template(), tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # jinja raises what the template's author chose
            remedy = "set prompt.system to an empty string or prompt.template to plain"
            raise UserError(f"the chat template refuses the conversation ({error}); {remedy}") from error

    def _dated_template(self) -> str | None:
        """The chat template with every call for today's date answered; None: as it is, where no date is set."""
        if self.settings.date is None or not asks_for_date(self.tokenizer, self.settings):
            return None
        today = datetime.fromisoformat(self.settings.date)
        template = self.tokenizer.hf.get_chat_template()
        return _CLOCK_CALL.sub(lambda call: json.dumps(today.strftime(call["format"]), ensure_ascii=False), template)

    def _chat_scaffold(self) -> tuple[str, str, str, str]:
        question, assistant, observation = _SENTINELS
        first = self._apply([question])
        whole = self._apply([question, assistant, observation])
        if any(whole.count(s) != 1 for s in _SENTINELS) or first.count(question) != 1:
            raise UserError(
                "the chat template repeats or drops contents, so it cannot be used; set prompt.template to plain"
            )
        head, tail = first.split(question)
        before, after = whole.split(assistant)[1].split(observation)
        opener = _split_open_think(tail)[1]  # then the reply's own text begins behind it
        reply = "a thought</think><search>a query</search>"
        wanted = self._apply(["Q", (opener or "<think>") + reply, "<tool_response>R</tool_response>"])
        ours = f"{head}Q{tail}{'' if opener else '<think>'}{reply}{before}<tool_response>R</tool_response>{after}"
        if ours != wanted:
            self.difference = (
                "the chat template rewrites earlier turns (many drop old thoughts or add an empty one); "
                f"ours keeps what was sampled. Template: {wanted!r}; ours: {ours!r}"
            )
        return head, tail, before, after


def _is_chat(tokenizer: Tokenizer, settings: PromptSettings) -> bool:
    has_template = bool(getattr(tokenizer.hf, "chat_template", None))
    return settings.template == "chat" or (settings.template == "auto" and has_template)


def asks_for_date(tokenizer: Tokenizer, settings: PromptSettings) -> bool:
    """Prompts are rendered with a chat template that prints today's date."""
    return _is_chat(tokenizer, settings) and _CLOCK in str(getattr(tokenizer.hf, "chat_template", None))


def prompt_probe(renderer: Renderer) -> dict[str, str]:
    """How a fixed question and a fixed tool result are rendered, as text and as a hash of the ids: what must stay the
    same when a run or an evaluation is resumed, whatever it comes from (template, tokenizer, date, settings)."""
    result = ToolResult(passages=("A passage.", "Another one."), notice="A notice.")
    parts = (
        renderer.question("Who wrote it?"),
        renderer.forced(0),
        renderer.observation(result).ids,
        renderer.forced(1),
    )
    ids = [list(part) for part in parts]
    text = "".join(renderer.tokenizer.decode(part) for part in parts)
    return {"text": text, "ids": hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:16]}


def _split_open_think(scaffold: str) -> tuple[str, str]:
    """Some templates open the thought for the model: those characters belong to the turn."""
    position = scaffold.rfind("<think>")
    if position >= 0 and scaffold[position:].strip() == "<think>":
        return scaffold[:position], scaffold[position:]
    return scaffold, ""


def _water_level(lengths: Sequence[int], room: int) -> int:
    """The largest cap with `sum(min(length, cap)) <= room`."""
    remaining, cap = room, 0
    ordered = sorted(lengths)
    for i, length in enumerate(ordered):
        share = remaining // (len(ordered) - i)
        if length > share:
            return share
        remaining, cap = remaining - length, length
    return cap
