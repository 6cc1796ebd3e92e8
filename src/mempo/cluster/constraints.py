"""What must divide, or be large enough, for verl to run a configuration: the equation, the numbers, a value that works.

verl finds most of these after minutes, when its workers are up; here they are found before anything starts. Refusals
come one at a time, in the order in which a person would fix them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mempo.cluster.model_shape import ModelShape
from mempo.config import Config
from mempo.config.cluster import ClusterSettings
from mempo.errors import ConfigError

AGENT_WORKERS = 8
MAX_LORA_RANK = 512
"""The largest that vLLM serves."""
PROBE_FRAME_TOKENS = 64
"""Tags and thought of a probe, in round figures; what the gold answer takes comes on top."""

_ROLLOUT = "actor_rollout_ref.rollout"
_QUEUE = "transfer_queue.backend.SimpleStorage.total_storage_size"
_SERVER_DEFAULTS: dict[str, Any] = {
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 256,
    "enable_chunked_prefill": True,
    "expert_parallel_size": 1,
}
"""verl's own."""


def agent_workers(config: Config, settings: ClusterSettings) -> int:
    """Processes that play rollouts: what is set, or as many as have something to do."""
    return settings.agent_workers or min(AGENT_WORKERS, config.rl.questions_per_step)


def server_window_tokens(config: Config, settings: ClusterSettings) -> int:
    """`rollout.max_model_len`. SGLang keeps a token of it free, which would be missing from the last reply."""
    return config.limits.max_context_tokens + (settings.engine == "sglang")


def check_divides(config: Config, shape: ModelShape | None = None) -> None:
    """Refuse a configuration that verl could not run on these machines.

    Raises:
        ConfigError: the equation with its numbers, and a value that works.
    """
    settings, shape = config.cluster or ClusterSettings(), shape or ModelShape()
    for check in (_servers, _shared_rows, _heads, _batch, _tokens, _window, _adapter, _server_sizes, _queue):
        check(config, settings, shape)


def check_enough_questions(config: Config, questions: int) -> None:
    """Refuse a batch that is larger than the data: verl drops what is left over, so there would be no batch at all.

    Raises:
        ConfigError: both numbers and a value that works.
    """
    batch, updates = config.rl.questions_per_step, config.rl.updates_per_step
    if questions < batch:
        works = questions - questions % updates
        remedy = f"set rl.questions_per_step={works}" if works else "set rl.updates_per_step=1"
        raise ConfigError(
            f"training questions >= rl.questions_per_step does not hold: {questions} < {batch}; take more questions, "
            f"or {remedy}"
        )


def _servers(config: Config, settings: ClusterSettings, shape: ModelShape) -> None:
    tensor, gpus, nodes = settings.tensor_parallel, settings.gpus_per_node, settings.nodes
    if settings.gpus % tensor:
        raise ConfigError(
            "cluster.nodes * cluster.gpus_per_node must be a multiple of cluster.tensor_parallel: "
            f"{nodes} * {gpus} % {tensor} = {settings.gpus % tensor}; "
            f"set cluster.tensor_parallel={_fitting(tensor, lambda n: _lies_whole(n, gpus, nodes))}"
        )
    if not _lies_whole(tensor, gpus, nodes):
        raise ConfigError(
            "a rollout server lies within a node or takes whole nodes, so cluster.tensor_parallel divides "
            f"cluster.gpus_per_node or is a multiple of it: {gpus} % {tensor} = {gpus % tensor}; "
            f"set cluster.tensor_parallel={_fitting(tensor, lambda n: _lies_whole(n, gpus, nodes))}"
        )


def _shared_rows(config: Config, settings: ClusterSettings, shape: ModelShape) -> None:
    parallel = settings.sequence_parallel
    if settings.gpus % parallel:
        raise ConfigError(
            "cluster.nodes * cluster.gpus_per_node must be a multiple of cluster.sequence_parallel: "
            f"{settings.nodes} * {settings.gpus_per_node} % {parallel} = {settings.gpus % parallel}; "
            f"set cluster.sequence_parallel={_fitting(parallel, lambda n: settings.gpus % n == 0)}"
        )
    if parallel > 1 and config.model.attention != "flash_attention_2":
        raise ConfigError(
            f"cluster.sequence_parallel {parallel} needs rows without padding, which only flash attention reads; set "
            f"model.attention=flash_attention_2 (now {config.model.attention}), or cluster.sequence_parallel=1"
        )


def _heads(config: Config, settings: ClusterSettings, shape: ModelShape) -> None:
    heads, pairs = shape.heads, shape.key_value_heads
    if heads is None or pairs is None:
        return

    def shared(n: int) -> bool:
        return heads % n == 0 and (pairs % n == 0 or n % pairs == 0)

    for name, value, divides in (
        ("tensor_parallel", settings.tensor_parallel, _within(settings, shared)),
        ("sequence_parallel", settings.sequence_parallel, lambda n: shared(n) and settings.gpus % n == 0),
    ):
        if not shared(value):
            if heads % value:
                equation = f"the model's {heads} attention heads must be a multiple of cluster.{name}"
                numbers = f"{heads} % {value} = {heads % value}"
            else:
                equation = f"cluster.{name} must divide the model's {pairs} key-value heads or be a multiple of them"
                numbers = f"{pairs} % {value} = {pairs % value}"
            raise ConfigError(f"{equation}: {numbers}; set cluster.{name}={_fitting(value, divides)}")


def _batch(config: Config, settings: ClusterSettings, shape: ModelShape) -> None:
    rl = config.rl
    if rl.steps < 1:
        raise ConfigError("rl.steps is 0, so there is nothing to do on a cluster; set rl.steps")
    if rl.rollouts_per_question < 2:
        raise ConfigError(
            f"rl.rollouts_per_question >= 2 does not hold: {rl.rollouts_per_question}; a rollout has only its group to "
            "be compared with; set rl.rollouts_per_question=16"
        )
    ranks = settings.gpus // settings.sequence_parallel
    questions = rl.questions_per_step // rl.updates_per_step
    rollouts = questions * rl.rollouts_per_question
    if rollouts < ranks:
        needed = -(-ranks // questions)
        raise ConfigError(
            "an update needs a rollout for every data-parallel rank: rl.questions_per_step / rl.updates_per_step * "
            f"rl.rollouts_per_question >= GPUs / cluster.sequence_parallel does not hold: {rl.questions_per_step} / "
            f"{rl.updates_per_step} * {rl.rollouts_per_question} = {rollouts} < {ranks}; "
            f"set rl.rollouts_per_question={needed}"
        )
    workers = agent_workers(config, settings)
    if workers > rl.questions_per_step:
        raise ConfigError(
            "questions go whole to one worker, so cluster.agent_workers <= rl.questions_per_step must hold: "
            f"{workers} > {rl.questions_per_step}; set cluster.agent_workers={rl.questions_per_step}"
        )


def _tokens(config: Config, settings: ClusterSettings, shape: ModelShape) -> None:
    row, parallel = config.limits.max_context_tokens, settings.sequence_parallel
    probe = PROBE_FRAME_TOKENS + config.memory.probe.max_gold_tokens if config.rl.memory_signal else 0
    of_probe = f" + memory.probe.max_gold_tokens + {PROBE_FRAME_TOKENS}" if probe else ""
    scores = config.rl.memory_signal or has_reference(config) or settings.recompute_logprobs
    if settings.micro_batch_tokens * parallel < row:
        works = row if settings.score_batch_tokens or not scores else row + probe
        raise ConfigError(
            "a row must fit into a micro-batch: cluster.micro_batch_tokens * cluster.sequence_parallel >= "
            f"limits.max_context_tokens does not hold: {settings.micro_batch_tokens} * {parallel} < {row}; "
            f"set cluster.micro_batch_tokens={-(-works // parallel)}"
        )
    if scores and settings.scored_tokens < row + probe:
        given = settings.score_batch_tokens or settings.micro_batch_tokens
        raise ConfigError(
            "a row must fit into a scoring pass: cluster.score_batch_tokens * cluster.sequence_parallel >= "
            f"limits.max_context_tokens{of_probe} does not hold: {given} * {parallel} < {row + probe}; "
            f"set cluster.score_batch_tokens={-(-(row + probe) // parallel)}"
        )


def _window(config: Config, settings: ClusterSettings, shape: ModelShape) -> None:
    needed, window = server_window_tokens(config, settings), shape.window_tokens
    if window is not None and needed > window:
        spare = needed - config.limits.max_context_tokens
        why = " + 1 (SGLang keeps a token free)" if spare else ""
        raise ConfigError(
            f"limits.max_context_tokens{why} <= the model's window does not hold: {needed} > {window}; "
            f"set limits.max_context_tokens={window - spare}"
        )


def _adapter(config: Config, settings: ClusterSettings, shape: ModelShape) -> None:
    lora = config.model.lora
    if lora is not None and settings.engine == "vllm" and lora.rank > MAX_LORA_RANK:
        raise ConfigError(
            f"model.lora.rank <= {MAX_LORA_RANK} does not hold: {lora.rank}, and vLLM serves no larger adapter; set "
            f"model.lora.rank={MAX_LORA_RANK}, or cluster.engine=sglang"
        )
    if lora is not None and lora.targets == "all-linear" and (shape.experts or 0) > 1:
        raise ConfigError(
            f"model.lora.targets is all-linear and the model has {shape.experts} experts a layer, whose adapter "
            "neither the rollout servers nor mempo cluster convert can add to the weights; name the layers of "
            "attention, such as model.lora.targets=[q_proj,k_proj,v_proj,o_proj]"
        )


def _server_sizes(config: Config, settings: ClusterSettings, shape: ModelShape) -> None:
    """vLLM's own limits, which it finds when it starts."""
    given = {name: settings.verl.get(f"{_ROLLOUT}.{name}", default) for name, default in _SERVER_DEFAULTS.items()}
    window, batched = server_window_tokens(config, settings), given["max_num_batched_tokens"]
    experts = given["expert_parallel_size"]
    if not given["enable_chunked_prefill"] and batched < window:
        raise ConfigError(
            f"cluster.verl: without {_ROLLOUT}.enable_chunked_prefill a prompt must fit into one pass of a server: "
            f"max_num_batched_tokens >= limits.max_context_tokens does not hold: {batched} < {window}; set "
            f"{_ROLLOUT}.max_num_batched_tokens={window}"
        )
    if batched < given["max_num_seqs"]:
        raise ConfigError(
            f"cluster.verl: {_ROLLOUT}.max_num_batched_tokens >= max_num_seqs does not hold: {batched} < "
            f"{given['max_num_seqs']}; set {_ROLLOUT}.max_num_seqs={batched}"
        )
    if experts not in (1, settings.tensor_parallel):
        raise ConfigError(
            f"cluster.verl: {_ROLLOUT}.expert_parallel_size is cluster.tensor_parallel or 1: {experts} is neither "
            f"{settings.tensor_parallel} nor 1; set {_ROLLOUT}.expert_parallel_size={settings.tensor_parallel}"
        )


def queued_rows(config: Config) -> int:
    """Room of the transfer queue, in rows: those of a step, as many of padding, those of a validation, and what tells
    them apart."""
    trained = config.rl.questions_per_step * config.rl.rollouts_per_question
    objectives = config.data.test_objectives or config.data.objectives
    tested = config.evaluate.questions * len(objectives) * config.evaluate.rollouts_per_question
    return (config.limits.max_turns + 2) * (2 * trained + tested)


def _queue(config: Config, settings: ClusterSettings, shape: ModelShape) -> None:
    room, needed = settings.verl.get(_QUEUE), queued_rows(config)
    if room is not None and room < needed:
        raise ConfigError(
            f"cluster.verl: {_QUEUE} holds {room} rows, and a step with its padding and a validation may have "
            f"{needed}; set {_QUEUE}={needed}, or leave it out"
        )


def has_reference(config: Config) -> bool:
    """Whether verl makes a reference: it exists where its KL term does; for the memory signal alone the term counts
    nothing."""
    return config.rl.loss.kl != "none" or (config.rl.memory_signal and config.memory.full_policy == "reference")


def server_rollouts(settings: ClusterSettings) -> int:
    """Rollouts that a server plays at once, whatever memory it has."""
    key = "max_num_seqs"
    return settings.verl.get(f"{_ROLLOUT}.{key}", _SERVER_DEFAULTS[key])


def _lies_whole(size: int, gpus: int, nodes: int) -> bool:
    return gpus % size == 0 or (size % gpus == 0 and nodes % (size // gpus) == 0)


def _within(settings: ClusterSettings, also: Callable[[int], bool]) -> Callable[[int], bool]:
    return lambda n: also(n) and _lies_whole(n, settings.gpus_per_node, settings.nodes)


def _fitting(wanted: int, works: Callable[[int], bool]) -> int:
    """The largest number up to `wanted` that works; 1 always does."""
    return next((n for n in range(wanted, 0, -1) if works(n)), 1)
