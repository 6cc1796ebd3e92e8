"""`mempo chat`: ask a policy in the terminal, and watch its turns."""

from __future__ import annotations

from typing import Annotated

import typer

from mempo.cli.policy import (
    ConfigFile,
    Model,
    Overrides,
    Served,
    ServedModel,
    Server,
    Tokenizer,
    console,
    named_policy,
)


def chat(
    model: Model = None,
    overrides: Overrides = None,
    config: ConfigFile = None,
    server: Server = None,
    served_model: ServedModel = None,
    tokenizer: Tokenizer = None,
    context: Annotated[
        bool, typer.Option("--context", help="Print before each turn all that the policy is shown.")
    ] = False,
) -> None:
    """Ask a trained agent questions of your own: its notes, searches and answer appear turn by turn."""
    from mempo.view.chat import chat as run_chat

    named = named_policy(model, overrides, config, Served(server, served_model, tokenizer), [])
    run_chat(named.resolved, named.path, console(), context)
