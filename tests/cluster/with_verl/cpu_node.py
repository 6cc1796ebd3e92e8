# pyright: reportMissingImports=false
"""A GPU node, played by a CPU: what stock verl needs to run whole training steps without one.

Loaded by `VERL_USE_EXTERNAL_MODULES` in every process of a run. Devices are the CPU, collectives are gloo's, and the
rollout servers hold a Hugging Face model that says what `scripted.py` tells it to say, with its own log-probs.
"""

from __future__ import annotations

import os
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

NAME = "cpu-double"
"""The name of the rollout engine, in the place of vllm or sglang."""


class _Nothing(types.ModuleType):
    """In the place of `torch.cuda`: memory is never used, and nothing has to be waited for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "mem_get_info":
            return lambda *_: (1 << 34, 1 << 34)
        if name == "get_device_name":
            return lambda *_: "a CPU"
        if name == "is_available":
            return lambda: True
        if name == "current_device":
            return lambda: "cpu"
        if name == "get_rng_state":
            return torch.get_rng_state
        if name == "set_rng_state":
            return torch.set_rng_state
        if name == "Event":
            return torch.Event
        return lambda *_, **__: 0


def _platform() -> Any:
    from verl.plugin.platform.platform_base import PlatformBase

    class CpuPlatform(PlatformBase):
        device_name = "cpu"  # type: ignore[assignment]
        vendor_name = "nvidia"  # type: ignore[assignment]
        device_module = _Nothing("cpu_device")  # type: ignore[assignment]

        def is_available(self) -> bool:
            return True

        def current_device(self) -> Any:
            return "cpu"  # goes where a device index goes

        def device_count(self) -> int:
            return 2

        def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
            return None, None

        def communication_backend_name(self) -> str:
            return "gloo"

        def visible_devices_envvar(self) -> str:
            return "CUDA_VISIBLE_DEVICES"

        @contextmanager
        def nvtx_range(self, msg: str) -> Iterator[None]:
            yield

        def ray_resource_name(self) -> str:
            return "GPU"

        def ray_noset_envvars(self) -> list[str]:
            return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

        def is_ipc_supported(self) -> bool:
            return False

        def rollout_env_vars(self) -> dict[str, str]:
            return {}

    def nothing(self: Any, *_: Any, **__: Any) -> None:
        return None

    for name in CpuPlatform.__abstractmethods__:
        setattr(CpuPlatform, name, nothing)
    CpuPlatform.__abstractmethods__ = frozenset()
    return CpuPlatform()


def _install() -> None:
    from verl.plugin.platform import platform_manager

    platform_manager.PlatformRegistry.register("cpu")(type(_platform()))
    platform_manager.set_platform(_platform())
    torch.Tensor.pin_memory = lambda self, *_, **__: self  # type: ignore[method-assign]
    torch.set_num_threads(1)

    from wrapt import register_post_import_hook

    register_post_import_hook(_gloo, "verl.utils.distributed")
    register_post_import_hook(_servers, "verl.workers.rollout.replica")
    register_post_import_hook(_adapters, "verl.workers.rollout.base")


def _gloo(module: Any) -> None:
    begin = module.initialize_global_process_group_ray

    def with_gloo(timeout_second: float | None = None, backend: str | None = None) -> None:
        begin(timeout_second, backend="cpu:gloo")

    module.initialize_global_process_group_ray = with_gloo


def _servers(module: Any) -> None:
    def load() -> Any:
        from tests.cluster.with_verl.cpu_server import CpuReplica

        return CpuReplica

    module.RolloutReplicaRegistry.register(NAME, load)


def _adapters(module: Any) -> None:
    module._ROLLOUT_REGISTRY[(NAME, "async")] = "tests.cluster.with_verl.cpu_server.ServerAdapter"


if os.environ.get("MEMPO_CPU_NODE") == "1":
    _install()
