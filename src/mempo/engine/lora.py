"""Low-rank adapters through peft: what is trained is small, and the policy without it is the reference.

The adapted model and the model without the adapter are two trees of modules over the same weights: there is no second
copy, nothing to switch on and off, and each can be used at any time.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from mempo.config.engine import LoraSettings
from mempo.engine.lora_merge import NAME, adapted_weights, refuse_unmergeable
from mempo.engine.policy import Adapter, Policy
from mempo.errors import UserError, nearest
from mempo.storage.model_files import partial_load, said

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_SUFFIX, _PREFIX = f".{NAME}.weight", "base_model.model."


def require_peft() -> Any:
    """The peft module.

    Raises:
        UserError: it is not installed.
    """
    try:
        import peft
    except ImportError as error:
        raise UserError(f"adapters need peft ({error}); pip install 'mempo[lora]'") from error
    return peft


def add_lora(policy: Policy, settings: LoraSettings, seed: int, base_path: str) -> Policy:
    """The policy with a fresh adapter, which changes nothing before it is trained; everything else is frozen.

    The model given becomes the adapted one; the policy without is `adapter.base` of the result. The adapter begins with
    numbers that depend on `seed` alone, and is in float32 whatever the weights are in.

    Raises:
        UserError: peft is missing, or `settings.targets` names layers that cannot have an adapter, or whose adapter
            could not be added to the weights afterwards.
    """
    peft = require_peft()
    targets = settings.targets if isinstance(settings.targets, str) else list(settings.targets)
    if isinstance(targets, list):
        _check_targets(policy.model, targets)
    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=0.0,
        target_modules=targets,
        exclude_modules=_not_called_as_linear(policy.model) or None,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        adapted = _inject(policy, config, base_path)
        refuse_unmergeable(adapted.model, _adapter_of(adapted).base.model)
    return adapted


def merge_lora(policy: Policy) -> Policy:
    """Add the adapter to the weights, in place; what is returned has none. The policy given is of no more use."""
    adapter = _adapter_of(policy)
    with torch.no_grad():
        for weight in adapted_weights(policy.model):
            adapter.base.model.get_parameter(weight.name).copy_(weight.merged())
    for parameter in adapter.base.model.parameters():
        parameter.requires_grad_(True)
    return adapter.base


def merged_weights(policy: Policy) -> dict[str, torch.Tensor]:
    """The state of a model without adapters that computes what the adapted one does, up to rounding."""
    merged = {weight.name: weight.merged() for weight in adapted_weights(policy.model)}
    return {**_adapter_of(policy).base.model.state_dict(), **merged}


def save_adapter(policy: Policy, folder: Path) -> None:
    """Write the adapter in peft's own format, with the configuration of its model."""
    model: Any = policy.model
    adapter = _adapter_of(policy)
    config = copy.copy(model.peft_config[NAME])
    config.base_model_name_or_path, config.inference_mode = adapter.base_path, True
    config.save_pretrained(str(folder))
    adapter.base.model.config.save_pretrained(folder)
    if adapter.base.model.generation_config is not None:
        adapter.base.model.generation_config.save_pretrained(folder)
    tensors = {_file_key(name): parameter.detach().contiguous() for name, parameter in _adapter_parameters(model)}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def is_adapter_folder(path: str) -> bool:
    return (Path(path) / CONFIG).is_file()


def load_adapter(load_base: Callable[[str], Policy], folder: Path) -> Policy:
    """Undo `save_adapter`; `load_base` loads the policy that the adapter belongs to.

    Raises:
        UserError: peft is missing, the base is not there, or the adapter is not whole or not of this model.
    """
    peft = require_peft()
    try:
        config = peft.LoraConfig.from_pretrained(str(folder))
        found = load_file(folder / WEIGHTS)
    except Exception as error:  # peft makes of a damaged configuration what it can
        raise UserError(f"the adapter in {folder} cannot be loaded: {said(error)}") from error
    config.inference_mode = False
    name = str(config.base_model_name_or_path)
    policy = _inject(load_base(str(folder / name) if name.startswith("..") else name), config, name)
    expected = {_file_key(key): parameter for key, parameter in _adapter_parameters(policy.model)}
    shapes = {key: (found[key].shape, expected[key].shape) for key in expected.keys() & found.keys()}
    differing = {key: pair for key, pair in shapes.items() if pair[0] != pair[1]}
    missing, extra = expected.keys() - found.keys(), found.keys() - expected.keys()
    if problem := partial_load(missing, differing, extra, len(expected), "the adapter"):
        raise UserError(f"the adapter in {folder} does not fit the model {name}: {problem}")
    with torch.no_grad():
        for key, parameter in expected.items():
            parameter.copy_(found[key])
    return policy


def _inject(policy: Policy, config: Any, base_path: str) -> Policy:
    plain: Any = _twin(policy.model)
    model: Any = policy.model
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*fan_in_fan_out")  # it looks for itself, and says so
            require_peft().inject_adapter_in_model(config, model, NAME)
    except ValueError as error:
        fitting = sorted(kind for kind in _linear(plain) if f"'{kind}'" not in str(error))
        raise UserError(
            f"the adapter does not fit the model: {said(error)}; model.lora.targets may name {', '.join(fitting)}"
        ) from error
    for _, parameter in _adapter_parameters(model):
        parameter.data = parameter.data.float()
    model.eval()
    base = Policy(plain, policy.tokenizer, policy.plain_head, 0, policy.autocast, policy.checkpointing)
    adapter = Adapter(base, base_path)
    return replace(base, model=model, adapter=adapter)


def _not_called_as_linear(model: PreTrainedModel) -> list[str]:
    """Layers that are linear by class and give something else than a product, such as routers that choose experts."""
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
        and type(module).forward is not torch.nn.Linear.forward
        and not _gives_a_product(module)
    ]


@torch.no_grad()
def _gives_a_product(layer: torch.nn.Linear) -> bool:
    made: Any = layer(layer.weight.new_zeros(1, layer.in_features))
    return isinstance(made, torch.Tensor) and made.shape == (1, layer.out_features)


def _linear(model: PreTrainedModel) -> set[str]:
    """Kinds of layers inside the model that can have an adapter."""
    embeddings, other = (model.get_input_embeddings(), model.get_output_embeddings()), _not_called_as_linear(model)
    return {
        name.split(".")[-1]
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear | Conv1D) and module not in embeddings and name not in other
    }


def _check_targets(model: PreTrainedModel, targets: list[str]) -> None:
    """Every name must be that of layers inside the model; peft would leave out those that it does not find."""
    linear = _linear(model)
    if unknown := [name for name in targets if name.split(".")[-1] not in linear]:
        raise UserError(
            f"model.lora.targets names {unknown[0]!r}, which is not a linear layer inside the model"
            f"{nearest(unknown[0], sorted(linear))}; there are {', '.join(sorted(linear))}"
        )


def _twin(model: PreTrainedModel) -> PreTrainedModel:
    """Another tree of modules over the same tensors."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)


def _adapter_of(policy: Policy) -> Adapter:
    if policy.adapter is None:
        raise ValueError("the policy has no adapter")
    return policy.adapter


def _adapter_parameters(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    return ((name, p) for name, p in model.named_parameters() if ".lora_" in name)


def _file_key(name: str) -> str:
    """peft's files leave the adapter's own name out, and name the model twice."""
    return _PREFIX + name.replace(_SUFFIX, ".weight")
