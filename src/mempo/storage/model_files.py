"""The files of a model, policy or encoder, as far as they can be judged before anything heavy is loaded.

What is wrong with them is said in one line, and weights that are no safetensors are refused before they are opened.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from safetensors import SafetensorError, safe_open

from mempo.errors import UserError

CONFIG, GENERATION = "config.json", "generation_config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_SHOWN = 3

# --- finding the folder ---------------------------------------------------------------------------------------------


def may_be_hub_name(path: str) -> bool:
    """Whether what is no path here may be `name` or `organisation/name` on the hub; anything else is a path."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id  # half a second, and rarely needed

    first, *rest = path.split("/")
    if path.startswith(("~", ".")) or "\\" in path or len(rest) > 1 or (rest and Path(first).is_dir()):
        return False
    try:
        validate_repo_id(path)
    except HFValidationError:
        return False
    return True


def refuse_missing(path: str, what: str = "model") -> None:
    """Refuse a path that is not there, unless it may be a hub name; asks nobody.

    Raises:
        UserError: neither.
    """
    if not path or (not Path(path).exists() and not may_be_hub_name(path)):
        raise UserError(f"no {what} folder {path!r}; give a folder with config.json and *.safetensors, or a hub name")


def model_folder(path: str, what: str = "model", weights: bool = True, settings: bool = False) -> Path:
    """The folder that `path` names, fetched from the hub if it is a hub name; without its weights where not asked for,
    and with the `config.yaml` of `mempo push` where that is asked for.

    Raises:
        UserError: it is not there, and cannot be fetched.
    """
    refuse_missing(path, what)
    folder = Path(path)
    return folder if folder.exists() else _from_hub(path, what, weights, settings)


_DESCRIPTION = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")


@cache
def _from_hub(name: str, what: str, weights: bool, settings: bool = False) -> Path:
    description = (*_DESCRIPTION, "config.yaml") if settings else _DESCRIPTION
    folder = _fetched(name, what, description)
    if weights:
        index = folder / INDEX
        files = sorted(set(_weight_map(index).values())) if index.is_file() else [WEIGHTS]
        folder = _fetched(name, what, (*description, *files))
    return folder


def _fetched(name: str, what: str, patterns: Sequence[str]) -> Path:
    from huggingface_hub import constants, snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(patterns)))
    except Exception as error:  # no network, no such name, no permission: each with its own class
        if constants.is_offline_mode():
            raise UserError(
                f"{what} {name!r} is not a folder here and not in the hub's cache ({constants.HF_HUB_CACHE}), and "
                "HF_HUB_OFFLINE is set; give a folder, or fetch it once while online"
            ) from error
        reason = said(error, lines=1)
        raise UserError(
            f"{what} {name!r} is not a folder here and cannot be fetched from the hub ({reason})"
        ) from error


def said(error: BaseException, lines: int | None = None) -> str:
    """What an error of another library says, in one line and not too long; of many `lines`, the first."""
    text = " ".join(" ".join(str(error).strip().splitlines()[:lines]).split())
    return (text[:297] + "..." if len(text) > 300 else text) or type(error).__name__


# --- descriptions ---------------------------------------------------------------------------------------------------


def read_object(file: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        UserError: the file cannot be read, is no JSON, or holds something else.
    """
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file} is damaged ({said(error)})") from error
    if not isinstance(found, dict):
        raise UserError(f"{file} is damaged (it holds {type(found).__name__}, where an object is expected)")
    return found


def read_config(folder: Path, what: str = "model") -> dict[str, Any]:
    """The contents of config.json.

    Raises:
        UserError: there is none, it is damaged, or it says of no family that it is the model's.
    """
    if not (folder / CONFIG).is_file():
        raise UserError(
            f"{folder} holds no config.json, so it is not {'an' if what[0] in 'aeiou' else 'a'} {what} folder"
        )
    config = read_object(folder / CONFIG)
    if not isinstance(config.get("model_type"), str):
        raise UserError(f"{folder / CONFIG} names no model_type, so nobody knows how to read the weights")
    return config


def context_window(config: Any) -> int | None:
    """The most tokens that a model sees: from the contents of config.json or a configuration of transformers, that of
    the text model where several are put together; None where nothing is said."""
    window = text_value(config, "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
    return window and max(window, *map(_stretched, _parts(config)))


def text_value(config: Any, *names: str) -> int | None:
    """A positive size of the text model by any of the names that families have for it; None where none is given."""
    found = (_get(part, name) for part in _parts(config) for name in names)
    return next((one for one in found if type(one) is int and one > 0), None)


def _parts(config: Any) -> list[Any]:
    return [config, *(_get(config, name) for name in ("text_config", "llm_config", "thinker_config", "decoder"))]


def _stretched(config: Any) -> int:
    """What YaRN stretches the window to: it may be set beside `max_position_embeddings` or in it."""
    scaling = _get(config, "rope_parameters") or _get(config, "rope_scaling")
    if (_get(scaling, "rope_type") or _get(scaling, "type")) != "yarn":
        return 0
    factor, original = _get(scaling, "factor"), _get(scaling, "original_max_position_embeddings")
    if not isinstance(factor, int | float) or not isinstance(original, int):
        return 0
    return int(factor * original)


def _get(part: Any, name: str) -> Any:
    return part.get(name) if isinstance(part, Mapping) else getattr(part, name, None)


def reply_ends(folder: Path, added_ids: Collection[int]) -> list[int]:
    """Ids that end a reply besides the tokenizer's own end of sequence; chat models often name several.

    They stand in generation_config.json. Without one, transformers goes by config.json, which often says what its class
    has by default: of that, only ids of added tokens (`added_ids`) count.

    Raises:
        UserError: a file is damaged.
    """
    if (folder / GENERATION).is_file():
        return _eos_ids(folder / GENERATION, read_object(folder / GENERATION))
    if not (folder / CONFIG).is_file():
        return []
    config = read_object(folder / CONFIG)
    text = config.get("text_config")
    parts = [config, text] if isinstance(text, dict) else [config]
    return [one for part in parts for one in _eos_ids(folder / CONFIG, part) if one in added_ids]


def _eos_ids(file: Path, found: Mapping[str, Any]) -> list[int]:
    said_ids = found.get("eos_token_id")
    ids = said_ids if isinstance(said_ids, list) else [] if said_ids is None else [said_ids]
    if wrong := [one for one in ids if not isinstance(one, int) or isinstance(one, bool)]:
        raise UserError(f"{file} is damaged (eos_token_id holds {wrong[0]!r}, which is not a token id)")
    return ids


# --- weights --------------------------------------------------------------------------------------------------------


def check_weights(folder: Path) -> None:
    """Refuse weights that would not be loaded whole, as far as the index and the heads of the files tell.

    Raises:
        UserError: no weights, weights in another format than safetensors or outside the folder, missing or damaged
            files, tensors that the index names and no file has.
    """
    said_name = read_config(folder).get("transformers_weights")
    if isinstance(said_name, str):
        entry = folder / _safe_name(said_name, folder / CONFIG)
    else:
        entry = next((folder / name for name in (WEIGHTS, INDEX) if (folder / name).is_file()), None)
    if entry is None:
        if named := sorted(p.name for p in folder.glob("*.safetensors")):
            raise UserError(
                f"{folder} holds no {WEIGHTS} and no {INDEX} that names its weights (found {listed(named)})"
            )
        others = sorted(p.name for p in folder.iterdir() if p.suffix in {".bin", ".pt", ".pth", ".ckpt", ".gguf"})
        found = f" (found {', '.join(others)})" if others else ""
        raise UserError(
            f"{folder} holds no *.safetensors{found}; weights load from safetensors only: convert them first"
        )
    if not entry.is_file():
        raise UserError(f"{folder / CONFIG} names the weights {entry.name}, which is not there")
    if entry.suffix != ".json":
        _names(entry)
        return
    named = _weight_map(entry)
    files = sorted(set(named.values()))
    if missing := [name for name in files if not (folder / name).is_file()]:
        raise UserError(f"{folder} lacks {len(missing)} of {len(files)} files of weights: {listed(missing)}")
    held = {name: _names(folder / name) for name in files}
    if lacking := [tensor for tensor, name in named.items() if tensor not in held[name]]:
        raise UserError(
            f"{entry} names {len(lacking)} of {len(named)} tensors in files that lack them: {listed(lacking)}"
        )


def listed(names: Collection[str]) -> str:
    """The first few, and how many more there are."""
    shown = ", ".join(sorted(names)[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown


def partial_load(
    missing: Collection[str],
    shapes: Mapping[str, tuple[Sequence[int], Sequence[int]]],
    extra: Collection[str],
    count: int,
    owner: str,
) -> str | None:
    """What keeps tensors from being loaded whole; None where nothing does. `shapes`: those in the files and those that
    are wanted, where they differ; `count`: of all tensors of `owner`."""
    problems = []
    if missing:
        problems.append(f"{len(missing)} of {count} tensors are missing ({listed(missing)})")
    if shapes:
        name = min(shapes)
        held, wanted = map(list, shapes[name])
        more = f" ({len(shapes) - 1} more differ)" if len(shapes) > 1 else ""
        problems.append(f"{name} is {held} and should be {wanted}{more}")
    if extra:
        problems.append(f"{len(extra)} tensors belong to no part of {owner} ({listed(extra)})")
    return "; ".join(problems) or None


def _weight_map(index: Path) -> dict[str, str]:
    """Tensors and the files that hold them; no name of a file leads out of the folder, or to a pickle."""
    named = read_object(index).get("weight_map")
    if not isinstance(named, dict) or not all(isinstance(name, str) for name in named.values()):
        raise UserError(f"{index} is damaged (it has no weight_map from tensors to files)")
    return {tensor: _safe_name(name, index) for tensor, name in named.items()}


def _safe_name(name: str, source: Path) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name:
        raise UserError(f"{source} names the weights {name!r}, which lie outside the folder; they are not opened")
    if not name.endswith((".safetensors", ".safetensors.index.json")):
        raise UserError(
            f"{source} names the weights {name!r}, which are not safetensors and may run code when they are loaded; "
            "they are not opened"
        )
    return name


def _names(file: Path) -> set[str]:
    """The tensors that a file of safetensors holds, whole."""
    try:
        with safe_open(file, framework="np") as opened:
            return set(opened.keys())
    except (OSError, SafetensorError) as error:
        raise UserError(f"{file} is damaged, or not whole ({said(error)})") from error
