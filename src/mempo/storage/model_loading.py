"""Loading a model of transformers whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer
from transformers.utils import logging

from mempo.errors import UserError
from mempo.rollout.tokenizer import Tokenizer
from mempo.storage.model_files import check_weights, partial_load, read_config, reply_ends, said


def load_tokenizer(folder: Path, what: str = "model") -> Any:
    """The tokenizer of a folder.

    Raises:
        UserError: it has none, or a damaged one.
    """
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # tokenizers raises bare exceptions, and the many classes what they like
        raise UserError(f"the tokenizer of the {what} in {folder} cannot be loaded: {said(error)}") from error


def folder_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a folder with all ids that end a reply.

    Raises:
        UserError: it has none, or a damaged one.
    """
    tokenizer = load_tokenizer(folder)
    return Tokenizer(tokenizer, reply_ends(folder, tokenizer.get_added_vocab().values()))


def load_whole(auto: Any, folder: Path, what: str = "model", **options: Any) -> Any:
    """The model of a folder by one of the Auto classes. transformers fills what the files lack with random numbers and
    leaves out what it has no place for, with a warning; here both are errors. `options` go to `from_pretrained`.

    Raises:
        UserError: files that cannot be loaded; tensors that are missing, left over, or of another shape.
    """
    config = read_config(folder, what)
    check_weights(folder)
    try:
        with _quiet():
            model, told = auto.from_pretrained(
                folder,
                use_safetensors=True,
                trust_remote_code=False,
                ignore_mismatched_sizes=True,  # they are in what is told
                output_loading_info=True,
                **options,
            )
    except Exception as error:  # a wrong configuration fails in as many ways as there are families
        remedy = ""
        if "attention implementation" in str(error):
            remedy = f"; {config['model_type']} has no such attention, set model.attention=eager"
        raise UserError(f"the {what} in {folder} cannot be loaded: {said(error)}{remedy}") from error
    _refuse_parts(model, told, config, folder, what)
    return model


def _refuse_parts(model: Any, told: Mapping[str, Any], config: Mapping[str, Any], folder: Path, what: str) -> None:
    missing, extra = set(told["missing_keys"]), set(told["unexpected_keys"])
    if what == "encoder":
        missing = {name for name in missing if "pooler" not in name.split(".")}  # vectors come from the hidden states
        extra = {name for name in extra if not _of_head(name, model, config)}
    shapes = {name: (held, wanted) for name, held, wanted in told["mismatched_keys"]}
    problem = partial_load(missing, shapes, extra, len(model.state_dict()), type(model).__name__)
    problem = problem or next((" ".join(str(one).split())[:300] for one in told["error_msgs"]), None)
    if problem is not None:
        raise UserError(
            f"the {what} in {folder} cannot be loaded whole: {problem}; the files are not complete, or config.json "
            f"({config['model_type']}) is that of another model"
        )


def _of_head(name: str, model: Any, config: Mapping[str, Any]) -> bool:
    """Whether a tensor belongs to what was trained on top of an encoder; the class that was saved is `…For…` then."""
    headed = any("For" in str(one) for one in config.get("architectures") or ())
    own = {child for child, _ in model.named_children()} | {model.base_model_prefix}
    return (headed or name.startswith("pooler.")) and name.split(".")[0] not in own


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the table that transformers prints of what it filled in: here it is an error."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
