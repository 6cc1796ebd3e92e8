"""The rules of an agent's language as instructions in its prompt. Which agents there are: `mempo.config.evaluate`."""

from __future__ import annotations

from mempo.rollout.protocol import TurnGrammar


def instructions(grammar: TurnGrammar) -> str:
    """The rules of the agent's language, for a model that was not fine-tuned to it, with a place for the question."""
    actions = {
        "search": "<search>your query</search> to search",
        "access": "<access>an address</access> to open a page",
        "answer": "<answer>your answer</answer> to answer and end",
    }
    known = [actions.get(action, f"<{action}>…</{action}>") for action in grammar.actions]
    lines = ["Answer the question at the end."]
    if len(grammar.actions) > 1:
        lines += [
            "You work in turns. Each turn is, in this order and with nothing outside the tags:",
            *(
                [
                    "- <mem>a note</mem> from the second turn on: everything found so far that the answer needs; older "
                    "turns may no longer be shown to you"
                ]
                if grammar.notes != "forbidden"
                else []
            ),
            "- <think>your reasoning</think>",
            f"- exactly one of: {'; '.join(known)}",
            "The result of a search or a page comes back in <tool_response>; never write that tag yourself.",
        ]
    else:
        lines.append(f"Write <think>your reasoning</think>, then {known[0]}; nothing outside the tags.")
    lines += [
        "If several questions are joined by ';', give one answer for each, joined by ';', in their order.",
        "Keep answers short.",
        "",
        "Question: {question}",
    ]
    return "\n".join(lines)
