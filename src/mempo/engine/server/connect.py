"""From the settings of a model server to a sampler and a tokenizer: what evaluation begins with."""

from __future__ import annotations

from typing import NamedTuple

from rich.console import Console
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as HfTokenizer
from transformers import PreTrainedTokenizerFast

from mempo.config.rollout import PromptSettings
from mempo.config.server import ServerSettings
from mempo.engine.server.capabilities import PROBE_TEXT, Capabilities, find_model, probe, with_seeds
from mempo.engine.server.client import OpenAIClient
from mempo.engine.server.sampler import OpenAISampler
from mempo.errors import UserError
from mempo.progress import say
from mempo.rollout.tokenizer import Tokenizer
from mempo.storage.model_files import model_folder
from mempo.storage.model_loading import folder_tokenizer

BYTES = "bytes"


class OpenedServer(NamedTuple):
    """`prompt`: the settings to make the agent with; a server that only chats cannot take every one."""

    sampler: OpenAISampler
    tokenizer: Tokenizer
    capabilities: Capabilities
    prompt: PromptSettings


def open_server(
    settings: ServerSettings, console: Console | None = None, prompt: PromptSettings | None = None
) -> OpenedServer:
    """Find the model, its tokenizer and what the server can do; prints that in a line. Close the sampler at the end.

    Raises:
        UserError: no server, a wrong key, no tokenizer, no endpoint that can be used.
    """
    screen = console or Console(quiet=True)
    client = OpenAIClient(settings)
    try:
        model, window = find_model(client)
        tokenizer = open_tokenizer(settings)
        own_tokens = settings.tokenizer == BYTES
        prompt_ids = None if own_tokens else tuple(tokenizer.hf(PROBE_TEXT).input_ids)
        capabilities = with_seeds(client, probe(client, model, prompt_ids, window))
    except BaseException:
        client.close()
        raise
    client.counts.clear()  # what is told at the end is told of the rollouts
    say(screen, capabilities.line())
    if capabilities.tokenizer_agrees is False:
        say(
            screen, "the server counts other tokens than server.tokenizer does: prompts go as text, costs are estimates"
        )
    fitted, changes = prompt_for(capabilities, prompt or PromptSettings(), own_tokens)
    for change in changes:
        say(screen, change)
    return OpenedServer(
        OpenAISampler(client, tokenizer, capabilities, fitted.system, own_tokens), tokenizer, capabilities, fitted
    )


def prompt_for(
    capabilities: Capabilities, prompt: PromptSettings, own_tokens: bool = False
) -> tuple[PromptSettings, list[str]]:
    """The prompt settings that the server can serve, and a sentence for each that had to change."""
    changes: list[str] = []
    if capabilities.api == "completions" and not own_tokens:
        return prompt, changes
    if prompt.template == "chat":
        changes.append("prompt.template is plain instead of chat: the server puts its own template around messages")
    if prompt.force_mem and not capabilities.can_force:
        changes.append("prompt.force_mem is off: a chat server does not continue text that was begun for the model")
        prompt = prompt.model_copy(update={"force_mem": False})
    return prompt.model_copy(update={"template": "plain"}), changes


def open_tokenizer(settings: ServerSettings) -> Tokenizer:
    """The tokenizer of `server.tokenizer`, else of `server.model`. A name that only the server gave is never loaded.

    Raises:
        UserError: there is none; the message names the setting.
    """
    if settings.tokenizer == BYTES:
        return byte_tokenizer()
    remedy = (
        "set server.tokenizer to a folder or hub name with the model's tokenizer, or to bytes "
        "(limits and costs in tokens then count bytes)"
    )
    name = settings.tokenizer or settings.model
    if name is None:
        raise UserError(f"server.tokenizer is not set: prompts are built and counted in tokens; {remedy}")
    try:
        return folder_tokenizer(model_folder(name, "tokenizer", weights=False))
    except UserError as error:
        what = f"server.tokenizer {name!r}" if settings.tokenizer else f"server.tokenizer is not set, and {name!r}"
        raise UserError(f"{what} cannot be loaded as a tokenizer ({error}); {remedy}") from error


def byte_tokenizer() -> Tokenizer:
    """A tokenizer of bytes, for models whose own is not known: exact about text, silent about their tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = HfTokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end of reply|>", special=True, normalized=False)])
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end of reply|>"))
