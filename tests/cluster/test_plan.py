"""Plans against sums made by hand: numbers and operators only, never the formulas under test."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

import mempo.cli.main
from mempo.cluster.model_shape import KNOWN, shape_of
from mempo.cluster.plan import Plan, as_json, make_plan
from mempo.cluster.plan_memory import memory_of
from mempo.cluster.plan_settings import plan_settings, settings_of_config
from mempo.cluster.plan_tokens import prompt_tokens, row_tokens, step_tokens
from mempo.config import resolve
from mempo.errors import UserError
from mempo.rewards.note_contexts import BASELINES, ahead_contexts, note_context
from mempo.rollout.context import make_context
from mempo.rollout.protocol import TurnGrammar, parse_turn
from mempo.rollout.render import Renderer
from mempo.rollout.tokenizer import Tokenizer
from mempo.rollout.trajectory import GenerationStop, Observation, ObservationPart, StopReason, Trajectory, Turn, rows_of
from tests.tiny import make_tokenizer

DOCS = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text("utf-8")
GB = 1e9


def plan(**given: Any) -> Plan:
    return make_plan(plan_settings(given))


def seconds(made: Plan) -> dict[str, float]:
    return {stage.name: stage.seconds for stage in made.times.stages}


def assert_close(found: float, wanted: float) -> None:
    assert found == pytest.approx(wanted, rel=1e-9)


# --- sizes of models -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("Qwen2.5-1.5B", 1_543_714_304),
        ("Qwen2.5-7B", 7_615_616_512),
        ("Qwen2.5-32B", 32_763_876_352),
        ("Qwen3-8B", 8_190_735_360),
        ("Llama-3.1-8B", 8_030_261_248),
        ("Llama-3.2-1B", 1_235_814_400),
        ("Mistral-7B-v0.3", 7_248_023_552),
    ],
)
def test_known_models_have_their_published_sizes(name: str, published: int) -> None:
    assert KNOWN[name].parameters == published


@pytest.mark.parametrize("build", [LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config])
def test_a_folder_tells_its_shape(tmp_path: Path, build: Any) -> None:
    config = build(
        vocab_size=99, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, tie_word_embeddings=False,
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert shape_of(str(tmp_path)).parameters == sum(p.numel() for p in model.parameters())


def test_a_name_may_have_more_to_it() -> None:
    assert shape_of("Qwen/Qwen2.5-7B-Instruct") == KNOWN["Qwen2.5-7B"]
    assert shape_of("models/qwen2.5-1.5b-sft") == KNOWN["Qwen2.5-1.5B"]
    assert shape_of("models/qwen2.5-7b-sft/") == KNOWN["Qwen2.5-7B"]
    with pytest.raises(UserError, match=r"'Qwen2\.5-8B' is not known; did you mean"):
        shape_of("Qwen2.5-8B")


def test_adapters_are_rank_times_both_ends_of_every_matrix() -> None:
    # Qwen2.5-1.5B, a layer: q 1536+1536, k and v 1536+256, o 1536+1536, gate, up and down 1536+8960.
    ends = 3072 + 2 * 1792 + 3072 + 3 * 10496
    assert KNOWN["Qwen2.5-1.5B"].adapter_parameters(16) == 28 * 16 * ends == 18_464_768


# --- three worked examples, the ones of docs/cluster.md ------------------------------------------------------------


def test_7b_on_8_gpus() -> None:
    made = plan(model="Qwen2.5-7B")
    # Memory in the update. 7 615 616 512 parameters in float32 over 8 GPUs, Adam twice that.
    layer = 233_057_792  # 2*3584*(3584+512) + 3584+2*512 + 2*3584 + 3*3584*18944
    table = 152_064 * 3584
    update, rollout = made.memory.update, made.memory.rollout
    assert_close(update.weights, 4 * 7_615_616_512 / 8)
    assert_close(update.gradients, update.weights)
    assert_close(update.optimizer, 8 * 7_615_616_512 / 8)
    # Two layers, embeddings and head in 2 bytes; gradients of the head, which is larger than a layer, in 2 and 4.
    assert_close(update.gathered, 2 * (2 * layer + 2 * table) + 6 * table)
    # A token: 28 inputs of 3584, and a layer with its gradients: 4*3584 + 3*3584 + 3*512 + 4*18944 = 102 400 values.
    assert_close(update.activations, 16_384 * 2 * (28 * 3584 + 2 * 102_400))
    assert_close(update.logits, 16_384 * 152_064 * 8)
    assert round(update.total / GB, 1) == 55.5
    # Memory during rollouts: half of 80 GB is the server's.
    assert_close(rollout.server, 40 * GB)
    assert_close(rollout.kv_cache, 40 * GB - 2 * 7_615_616_512 - 3 * GB)
    assert round(rollout.total / GB, 1) == 55.4
    # A token has 28 layers * 2 * 512 numbers of 2 bytes = 57 344 bytes; a step at most 80+120+20+600 + 250 tokens.
    assert made.memory.kv_tokens == int((37 * GB - 15_231_233_024) / 57_344) == 379_617
    assert made.memory.contexts == 379_617 // 1070 == 354
    assert_close(made.memory.host, 4 * 7_615_616_512)  # the reference, all of it on the one node
    # Tokens: 128 * 16 = 2048 rollouts of 8 turns, each a row: the first 80 + 250, seven of 820 + 250.
    tokens = made.tokens
    assert tokens.generated == 2048 * 8 * 250 == 4_096_000
    assert tokens.prefilled == 2048 * (80 + 7 * 820) == 11_919_360
    assert tokens.prefilled_cached == 128 * 80 + 2048 * 7 * 740 == 10_618_880
    assert (tokens.rows, tokens.trained) == (2048 * 8, 2048 * (330 + 7 * 1070)) == (16_384, 16_015_360)
    assert tokens.padding_rows == 0
    # Notes of turns 2 to 8, each behind the question: 80 + 120 + 40.
    assert (tokens.probe_rows, tokens.probes) == (2048 * 7, 2048 * 7 * 240) == (14_336, 3_440_640)
    assert tokens.searches == 2048 * 7
    # Time. A token is multiplied with all but the embedding table; attention adds 2*28*3584 for every pair s*s.
    multiplied = 7_615_616_512 - table
    forward = 2 * multiplied * 16_015_360 + 2 * 28 * 3584 * 2048 * (330**2 + 7 * 1070**2)
    speed = 8 * 312e12 * 0.35
    assert_close(seconds(made)["old log-probs"], forward / speed)
    assert_close(seconds(made)["reference"], forward / speed)
    assert_close(seconds(made)["update"], 4 * forward / speed)  # forward, again in checkpoints, backward twice
    probes = 2 * multiplied * 3_440_640 + 2 * 28 * 3584 * 14_336 * 240**2
    assert_close(seconds(made)["memory signal"], probes / speed)
    # Prefill: 740 new tokens after 80 in seven turns, and the question once a group.
    prefill = 2 * multiplied * 10_618_880 + 2 * 28 * 3584 * (2048 * 7 * (820**2 - 80**2) + 128 * 80**2)
    assert_close(seconds(made)["prefill"], prefill / speed)
    # Decode: 256 rollouts on each of 8 servers fit at once. Here operations take longer than reading memory.
    assert (made.times.waves, made.times.at_once) == (1, 256)
    pairs = (330**2 - 80**2) + 7 * (1070**2 - 820**2)
    decode = 2 * multiplied * 4_096_000 + 2 * 28 * 3584 * 2048 * pairs
    context = (80 + 125 + 7 * (820 + 125)) / 8
    reading = 8 * 250 * (2 * 7_615_616_512 + 256 * context * 57_344) / (2039e9 * 0.5)
    assert_close(seconds(made)["decode"], max(decode / speed, reading))
    assert_close(seconds(made)["search"], 7 * 0.2)
    # The longest rollout takes twice as long as the mean one.
    assert_close(seconds(made)["the longest rollout"], max(decode / speed, reading) + 7 * 0.2)
    assert round(made.times.total_s) == 1947
    # Retrieval: all queries in the rollout phase, three times as fast at the worst.
    rollout_s = prefill / speed + max(decode / speed, reading) + 1.4
    assert_close(made.service.queries_per_s, 14_336 / rollout_s)
    for number in ("55.5", "55.4", "379,617", "16,015,360", "1,947"):
        assert number in DOCS


def test_1_5b_with_adapters_on_one_small_gpu() -> None:
    made = plan(
        model="Qwen2.5-1.5B", gpus=1, gpu_memory_gb=24, lora_rank=16, questions=16, rollouts=8, turns=6,
        micro_batch_tokens=8192, gpu_memory_fraction=0.4,
    )  # fmt: skip
    update, rollout, adapter = made.memory.update, made.memory.rollout, 18_464_768
    layer, table = 46_797_824, 151_936 * 1536  # 2*1536*(1536+256) + 1536+2*256 + 2*1536 + 3*1536*8960
    assert_close(update.weights, 4 * (1_543_714_304 + adapter))
    assert_close(update.gradients, 4 * adapter)
    assert_close(update.optimizer, 8 * adapter)
    assert_close(update.gathered, 2 * (2 * layer + table))  # no gradients of what is frozen; one table
    # 4*1536 + 3*1536 + 3*256 + 4*8960 = 47 360 values inside a layer.
    assert_close(update.activations, 8192 * 2 * (28 * 1536 + 2 * 47_360))
    assert_close(update.logits, 8192 * 151_936 * 8)
    assert round(update.total / GB, 1) == 23.3
    assert_close(rollout.server, 9.6 * GB)
    assert round(rollout.total / GB, 1) == 20.0
    # 28 layers * 2 * 256 numbers of 2 bytes = 28 672 bytes a token.
    assert made.memory.kv_tokens == int((6.6 * GB - 3_087_428_608) / 28_672) == 122_508
    assert made.memory.host == 0  # the reference is the policy without its adapter
    # 128 rollouts on one server, of which 122 508 // 1070 = 114 fit: two waves of 64.
    assert (made.memory.contexts, made.times.waves, made.times.at_once) == (114, 2, 64)
    forward = 2 * 1_543_714_304 * 128 * (330 + 5 * 1070) + 2 * 28 * 1536 * 128 * (330**2 + 5 * 1070**2)
    speed = 312e12 * 0.35
    assert_close(seconds(made)["update"], 3 * forward / speed)  # forward, again, and backward to the adapters alone
    assert_close(seconds(made)["search"], 2 * 5 * 0.2)
    for number in ("23.3", "20.0", "18,464,768"):
        assert number in DOCS


def test_32b_on_16_gpus_with_the_whole_history() -> None:
    made = plan(
        model="Qwen2.5-32B", gpus=16, tensor_parallel=4, micro_batch_tokens=8192, agent_context="full", turns=6,
        baseline="full", questions=60, updates=4, gpu_memory_fraction=0.5,
    )  # fmt: skip
    update, rollout, tokens = made.memory.update, made.memory.rollout, made.tokens
    size, table = 32_763_876_352, 152_064 * 5120
    layer = 487_605_248  # 2*5120*(5120+1024) + 5120+2*1024 + 2*5120 + 3*5120*27648
    assert_close(update.weights, 4 * size / 16)
    assert_close(update.gathered, 2 * (2 * layer + 2 * table) + 6 * table)
    # 4*5120 + 3*5120 + 3*1024 + 4*27648 = 149 504 values inside a layer.
    assert_close(update.activations, 8192 * 2 * (64 * 5120 + 2 * 149_504))
    assert round(update.total / GB, 1) == 66.7
    assert_close(rollout.server_weights, 2 * size / 4)
    assert round(rollout.total / GB, 1) == 68.6
    assert_close(made.memory.host, 4 * size / 2)  # half of the reference on each of two nodes
    # A token: 64 layers * 2 * 1024 numbers of 2 bytes, over 4 GPUs.
    assert made.memory.kv_tokens == int((37 * GB - 16_381_938_176) / 65_536) == 314_606
    # 960 rollouts, each one row: 80 + 6*250 + 5*600.
    assert (tokens.rows, tokens.trained) == (960, 960 * 4580)
    assert tokens.longest_context == 4580
    # The prompts of the turns are 80, 930, 1780, 2630, 3480, 4330; a cache leaves the five tool results.
    assert tokens.prefilled == 960 * (80 + 930 + 1780 + 2630 + 3480 + 4330)
    assert tokens.prefilled_cached == 60 * 80 + 960 * 5 * 600
    # Four mini-batches of 240 rows divide by 16 GPUs.
    assert tokens.padding_rows == 0
    # A probe behind the note (80+120+40) and one behind the history (the prompt and 40), for five turns.
    assert tokens.probe_rows == 960 * 5 * 2
    assert tokens.probes == 960 * (5 * 240 + 930 + 1780 + 2630 + 3480 + 4330 + 5 * 40)
    forward = 2 * (size - table) * 960 * 4580 + 2 * 64 * 5120 * 960 * 4580**2
    assert_close(seconds(made)["update"], 4 * forward / (16 * 312e12 * 0.35))
    # 960 * 4 / 16 = 240 rollouts a server, 314 606 // 4580 = 68 of them at once: four waves of 60.
    assert (made.times.waves, made.times.at_once) == (4, 60)
    for number in ("66.7", "68.6", "4,396,800"):
        assert number in DOCS


# --- tokens, against the agent's own contexts ----------------------------------------------------------------------

TOKENIZER = make_tokenizer("byte_bpe", "added")
T = {"note": 9, "action": 5, "observation": 13, "question": 7, "turn": 20, "turns": 5, "probe": 4}


def lengths_plan(**changes: Any) -> Any:
    lengths = {f"{name}_tokens": T[name] for name in ("note", "action", "observation", "question", "turn", "probe")}
    fixed = {"model": "Qwen2.5-7B", "turns": T["turns"], "questions": 3, "rollouts": 2, "gpus": 4}
    return plan_settings({**fixed, **lengths, **changes})


def an_episode(context: str, tokenizer: Tokenizer = TOKENIZER) -> Trajectory:
    """A rollout of the planned lengths, its prompts made by the agent's own context. Ids are arbitrary and all
    different, so that no prefix is shared by chance."""
    built, question, turns = make_context(context, Renderer(tokenizer)), tuple(range(1000, 1000 + T["question"])), []
    for t in range(T["turns"]):
        at = 2000 + 100 * t
        prompt = built.build(question, turns, 10**6).ids
        parsed = parse_turn("<mem>n</mem><think>x</think><search>q</search>", t, TurnGrammar("optional", "optional"))
        observed = Observation((ObservationPart(tuple(range(at + 50, at + 50 + T["observation"]))),))
        turns.append(
            Turn(
                index=t,
                prompt_ids=prompt,
                generated_ids=tuple(range(at, at + T["turn"])),
                logprobs=(),
                stop=GenerationStop.STOP_STRING,
                parsed=parsed,
                note_ids=tuple(range(at + 1, at + 1 + T["note"])),
                action_ids=tuple(range(at + 15, at + 15 + T["action"])),
                observation=observed,
            )
        )
    return Trajectory("q", 0, question, tuple(turns), StopReason.TURN_LIMIT)


CONTEXTS = pytest.mark.parametrize("context", ["memory", "full", "last_turn", "generations", "window(2)", "window(9)"])


@CONTEXTS
def test_prompts_and_rows_are_those_of_the_agent(context: str) -> None:
    settings, episode = lengths_plan(agent_context=context), an_episode(context)
    assert [prompt_tokens(settings, t + 1) for t in range(T["turns"])] == [len(t.prompt_ids) for t in episode.turns]
    assert row_tokens(settings) == [len(row.ids) for row in rows_of(episode)]
    tokens = step_tokens(settings)
    assert tokens.trained == 6 * sum(len(row.ids) for row in rows_of(episode))
    assert tokens.longest_context == episode.peak_context_tokens


@CONTEXTS
def test_a_prefix_cache_leaves_what_no_earlier_sequence_begins_with(context: str) -> None:
    turns = an_episode(context).turns

    def shared(a: tuple[int, ...], b: tuple[int, ...]) -> int:
        return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))

    new = 0
    for t in range(1, T["turns"]):
        seen = [turn.prompt_ids + turn.generated_ids for turn in turns[:t]]
        new += len(turns[t].prompt_ids) - max(shared(turns[t].prompt_ids, sequence) for sequence in seen)
    found = step_tokens(lengths_plan(agent_context=context)).prefilled_cached
    assert found == 3 * T["question"] + 6 * new


@CONTEXTS
@pytest.mark.parametrize("baseline", ["none", "full", "visible"])
@pytest.mark.parametrize("lookahead", [0, 2])
def test_probes_are_those_of_the_memory_signal(context: str, baseline: str, lookahead: int) -> None:
    episode, rows = an_episode(context), []
    for turn in episode.turns[1:]:
        seen = [note_context(episode, turn)]
        if turn.index + 1 < T["turns"]:  # the last turn's result is never seen by anybody
            ahead = ahead_contexts(episode, turn, lookahead)
            seen += ahead[: T["turns"] - 1 - turn.index]
        seen += [BASELINES[baseline](episode, turn)] if baseline != "none" else []
        rows += [len(ids) + T["probe"] for ids in seen]
    tokens = step_tokens(lengths_plan(agent_context=context, baseline=baseline, lookahead=lookahead))
    assert (tokens.probe_rows, tokens.probes) == (6 * len(rows), 6 * sum(rows))


def test_a_previous_note_is_asked_once() -> None:
    tokens = step_tokens(lengths_plan(baseline="previous_note"))
    plain = step_tokens(lengths_plan())
    assert tokens.probe_rows - plain.probe_rows == 3  # the question alone, once for its group
    assert tokens.probes - plain.probes == 3 * (T["question"] + T["probe"])


def test_padding_makes_mini_batches_divide() -> None:
    # 3 * 2 rollouts of 5 rows are 30 rows; two mini-batches of 15 become 16 on 4 GPUs.
    assert step_tokens(lengths_plan(updates=2)).padding_rows == 2
    assert step_tokens(lengths_plan(updates=1, sequence_parallel=2)).padding_rows == 0


def test_a_server_plays_no_more_rollouts_than_it_may() -> None:
    # 256 rollouts on each of 8 servers, of which memory would hold 354.
    made = plan(model="Qwen2.5-7B", max_num_seqs=100)
    assert (made.memory.contexts, made.times.waves, made.times.at_once) == (354, 3, 86)
    told = settings_of_config(
        resolve("cluster-qwen2.5-7b", ["cluster.verl={actor_rollout_ref.rollout.max_num_seqs: 64}"]).config
    )
    assert (told["max_num_seqs"], settings_of_config(resolve("cluster-qwen2.5-7b").config)["max_num_seqs"]) == (64, 256)


@pytest.mark.parametrize(("slowest", "share"), [(1.0, 0.0), (2.5, 1.5)])
def test_a_step_waits_for_its_longest_rollout(slowest: float, share: float) -> None:
    made = plan(model="Qwen2.5-7B", slowest=slowest)
    found = seconds(made)
    assert_close(found["the longest rollout"], share * (found["decode"] + found["search"]))
    assert_close(made.times.rollout_s, found["prefill"] + found["decode"] + found["search"])


def test_published_measures_of_a_server_are_met_on_the_safe_side() -> None:
    """docs/cluster.md, "How far off it is": vLLM on one H100 with Qwen3-8B, nine tenths of its memory."""
    shape = shape_of("Qwen3-8B")
    one = plan_settings({"model": "Qwen3-8B", "gpus": 1, "gpu_memory_fraction": 0.9, "gpu_bandwidth_gb_s": 3350})
    room = memory_of(one, shape, step_tokens(one)).kv_tokens
    assert 0.94 < room / (327 * 1152) < 1.0
    # 396 requests at once, each of 128 prompt tokens and 1024 of its own, made 13 322 tokens a second.
    step_s = (2 * shape.parameters + 396 * (128 + 512) * 147_456) / (3350e9 * one.decode_efficiency)
    assert 0.9 < 396 / step_s / 13_322 < 1.0


def test_what_is_switched_off_costs_nothing() -> None:
    made = plan(model="Qwen2.5-7B", memory_signal=False, reference=False, recompute_logprobs=False, turns=1)
    assert {name for name, value in seconds(made).items() if value == 0} == {
        "search", "old log-probs", "reference", "memory signal",
    }  # fmt: skip
    assert made.memory.host == 0


# --- what does not fit ---------------------------------------------------------------------------------------------


def refused(**given: Any) -> str:
    with pytest.raises(UserError) as error:
        plan(**given)
    return str(error.value)


def attempt(given: dict[str, Any], *overrides: str) -> tuple[Plan | None, str]:
    try:
        return make_plan(plan_settings(given, overrides)), ""
    except UserError as error:
        return None, str(error)


@pytest.mark.parametrize(
    ("given", "equation", "remedy"),
    [
        (
            {"model": "Qwen2.5-32B", "gpus": 16, "tensor_parallel": 4},
            "in the update a GPU holds weights 8.2 + gradients 8.2 + optimizer 16.4 + gathered layers 9.7 + "
            "activations 20.5 + logits 19.9 + reserve 4.0 = 87.0 GB of 80",
            "set micro_batch_tokens=13312",
        ),
        (
            {"model": "Qwen2.5-7B", "gpus": 1, "gpu_memory_fraction": 0.1},
            "the rollout server needs weights 15.2 + overhead 3.0 + one context 0.1 = 18.3 GB of each GPU, but "
            "gpu_memory_fraction 0.1 * 80 GB = 8.0",
            "set gpu_memory_fraction=0.55 offload_optimizer=true",
        ),
        (
            {"model": "Qwen2.5-7B", "gpus": 8, "gpu_memory_gb": 40},
            "in the update a GPU holds weights 3.8 + gradients 3.8 + optimizer 7.6 + gathered layers 6.4 + activations "
            "10.0 + logits 19.9 + reserve 4.0 = 55.5 GB of 40",
            "set micro_batch_tokens=8192 gpus=16",
        ),
        (
            {"model": "Qwen2.5-14B", "gpus": 8, "gradient_checkpointing": False},
            "in the update a GPU holds weights 7.4",
            "set micro_batch_tokens=8192 gradient_checkpointing=true",
        ),
    ],
)
def test_what_does_not_fit_is_told_with_a_value_that_does(given: dict[str, Any], equation: str, remedy: str) -> None:
    made, message = attempt(given)
    assert made is None
    assert message.startswith(equation)
    assert message.endswith(f"; {remedy}")
    mended, other = attempt(given, *remedy.split(" ")[1:])
    assert mended is not None or other.split(" a GPU")[0] != message.split(" a GPU")[0]  # at most another phase


def test_what_nothing_helps_says_so() -> None:
    message = refused(model="Qwen2.5-72B", gpus=1, gpu_memory_gb=24)
    assert message.startswith("the rollout server needs weights 145.4")
    assert message.endswith("take larger GPUs, or a smaller model")


def test_a_step_longer_than_the_context_is_refused() -> None:
    given = {"model": "Qwen2.5-7B", "agent_context": "full", "turns": 16}
    message = refused(**given)
    # 80 + 15 * (250 + 600) + 250
    assert "13080 tokens in context full, more than context_tokens 8192; set it to 13080" in message
    assert plan(**given, context_tokens=13080).tokens.longest_context == 13080


def test_a_row_longer_than_a_micro_batch_is_refused() -> None:
    message = refused(model="Qwen2.5-7B", context_tokens=32768)
    assert message.endswith("set micro_batch_tokens=32768")
    assert plan(model="Qwen2.5-7B", context_tokens=32768, sequence_parallel=2).settings.sequence_parallel == 2


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"modle": 1, "model": "Qwen2.5-7B"}, "unknown key 'modle'; did you mean 'model'?"),
        ({"model": "Qwen2.5-7B", "gpus": 6, "tensor_parallel": 4}, "8 is"),
        ({"model": "Qwen2.5-7B", "note_tokens": 300}, "raise turn_tokens"),
        ({"model": "Qwen2.5-7B", "engine": "tgi"}, "engine: Input should be 'vllm'"),
        ({"model": "Qwen2.5-7B", "agent_context": "mine:make"}, "not a built-in context"),
        ({"gpus": 8}, "no model is named; give model="),
    ],
)
def test_wrong_numbers_are_told(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as error:
        plan_settings(given)
    assert words in str(error.value)


# --- retrieval -----------------------------------------------------------------------------------------------------


def test_a_measured_speed_is_believed() -> None:
    made = plan(model="Qwen2.5-7B", replica_queries_per_s=20.0, burst=2.0)
    assert made.service.replicas == -(-2 * made.service.queries_per_s // 20)
    assert plan(model="Qwen2.5-7B").service.replicas is None


# --- from the command line -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["cluster-qwen2.5-7b", "cluster-qwen2.5-1.5b-lora"])
def test_the_recipes_fit_their_machines(recipe: str) -> None:
    config = resolve(recipe).config
    memory = 24 if "lora" in recipe else 80
    made = plan(**settings_of_config(config), gpu_memory_gb=memory)
    assert made.settings.gpus == (1 if "lora" in recipe else 8)
    assert made.settings.lora_rank == (config.model.lora.rank if config.model.lora else None)
    assert made.settings.turns == config.limits.max_turns


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["mempo", "cluster", "plan", *arguments])
    with pytest.raises(SystemExit) as stop:
        mempo.cli.main.main()
    return int(stop.value.code or 0)


def test_a_plan_from_the_command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    assert call(monkeypatch, "model=Qwen2.5-7B", "gpus=8") == 0
    table = capsys.readouterr().out
    assert "16,015,360" in table
    assert "GB on each of 8 GPUs of 80" in table
    assert call(monkeypatch, "cluster-qwen2.5-7b", "turns=4", "baseline=full", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["settings"]["turns"], found["settings"]["baseline"]) == (4, "full")
    assert found["memory"]["update"]["total"] < 80e9
    assert found == json.loads(json.dumps(as_json(plan(**found["settings"]))))


def test_mistakes_are_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    assert call(monkeypatch, "gpus=8") == 2
    assert call(monkeypatch, "model=Qwen2.5-7B", "turns") == 2
    said = capsys.readouterr().err
    assert "no model is named" in said
    assert "'turns' is not an override; write key=value" in said
    assert "Traceback" not in said
