"""Each check says what it found, and what to do where something is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mempo.cluster.doctor import GIB, PLUGIN, Check, all_checks, failures, quick_checks
from mempo.cluster.machine import Machine, Node
from mempo.cluster.model_shape import KNOWN, ModelShape, shape_of
from mempo.config import Resolved, resolve
from mempo.errors import UserError
from tests.tiny import make_tokenizer, tiny_llama, tiny_model

WELL: dict[str, Any] = {
    "version_problems": list,
    "installed": lambda package: {"vllm": "0.24.0", "sglang": "0.5.12"}.get(package, "1.2.3"),
    "plugins": lambda: ["other", PLUGIN],
    "trainer": lambda: "mempo.cluster.trainer",
    "gpu_bytes": lambda: [80 * GIB] * 8,
    "reaches": lambda host, port: True,
    "nodes": lambda address: [Node(f"10.0.0.{n}", 8, (80 * GIB,) * 8) for n in (1, 2)],
    "healthy": lambda config: None,
    "shape": lambda path: ModelShape(28, 4, 32_768),
    "decoder": lambda path: KNOWN["Qwen2.5-7B"],
    "writable": lambda folder: True,
}


def machine(**changes: Any) -> Machine:
    return Machine(**{**WELL, **changes})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tokenizer = make_tokenizer()
    tiny_llama(tokenizer).model.save_pretrained(folder)
    tokenizer.hf.save_pretrained(folder)
    return folder


def resolved(*overrides: str) -> Resolved:
    return resolve("cluster-qwen2.5-7b", ["model.path=org/model", *overrides])


def whole(model: Path, *overrides: str, **changes: Any) -> list[Check]:
    small = (f"model.path={model}", "limits.max_context_tokens=1024", "agent.tools=[]")
    return list(all_checks(resolved(*small, *overrides), machine(**changes), None))


def quick(*overrides: str, address: str | None = None, **changes: Any) -> list[Check]:
    return list(quick_checks(resolved(*overrides), machine(**changes), address))


def only(checks: list[Check], name: str) -> Check:
    (found,) = [check for check in checks if check.name == name]
    return found


def test_a_machine_that_has_everything() -> None:
    checks = quick()
    assert [check.name for check in checks] == [
        *("configuration", "versions", "engine", "GPUs", "memory", "model", "retrieval", "output")
    ]
    assert {check.status for check in checks} == {"ok"}
    assert only(checks, "GPUs").line == "ok    GPUs: 8, the smallest with 80 GiB"


@pytest.mark.parametrize(
    ("changes", "name", "said"),
    [
        ({"version_problems": lambda: ["verl is 0.8; do it"]}, "versions", "fail  versions: verl is 0.8; do it"),
        ({"installed": lambda package: None if package == "vllm" else "1"}, "engine", "pip install vllm==0.24.0"),
        ({"installed": lambda package: "0.24.0" if package == "vllm" else None}, "attention", "model.attention=sdpa"),
        ({"plugins": lambda: ["other"]}, "plug-in", "pip install 'mempo[cluster]'"),
        ({"gpu_bytes": lambda: [80 * GIB] * 4}, "GPUs", "4 of 8 are visible to torch; set cluster.gpus_per_node=4"),
        ({"gpu_bytes": list}, "GPUs", "give --address"),
        ({"shape": lambda path: ModelShape(28, 4, 2048)}, "model", "limits.max_context_tokens=2048"),
        ({"writable": lambda folder: False}, "output", "set another output"),
    ],
)
def test_what_is_missing_is_told_with_the_remedy(changes: dict[str, Any], name: str, said: str) -> None:
    check = only(failures(quick(**changes)), name)
    assert said in check.line


def test_another_version_of_the_engine_is_untried() -> None:
    check = only(quick(installed=lambda package: "0.30.1"), "engine")
    assert check.line == "warn  engine: vllm is 0.30.1, verl 0.9.1 names 0.24.0; try it, or take 0.24.0"


def test_attention_of_torch_needs_no_package() -> None:
    checks = quick("model.attention=sdpa", installed=lambda package: "0.24.0" if package == "vllm" else None)
    assert failures(checks) == []


def test_a_refused_configuration_fails_and_the_rest_is_still_checked() -> None:
    checks = quick("cluster.tensor_parallel=3")
    assert "set cluster.tensor_parallel=2" in only(checks, "configuration").line
    assert only(checks, "retrieval").status == "ok"


def test_a_key_of_verl_that_may_not_be_set_fails() -> None:
    check = only(quick("cluster.verl={trainer.devise: cpu}"), "configuration")
    assert "verl 0.9.1 has no key trainer.devise; did you mean 'trainer.device'?" in check.line
    assert "1 of verl's own keys" in only(quick("cluster.verl={trainer.log_val_generations: 4}"), "configuration").line


def test_memory_is_that_of_the_plan() -> None:
    # Qwen2.5-7B on 8 GPUs, as docs/cluster.md works it out; the recipe's context is larger, its lengths are the plan's.
    assert only(quick(), "memory").fact == "58.4 GB in rollouts, 55.5 in the update, by the plan"
    small: dict[str, Any] = {"gpu_bytes": lambda: [24 * GIB] * 8}
    said = only(failures(quick(**small)), "memory").fact
    assert "weights 15.2 + overhead 3.0 + one context 0.1" in said
    works = ["cluster.tensor_parallel=4", "cluster.gpu_memory_fraction=0.4"]
    assert said.endswith(f"set {' '.join(works)}")
    assert "in the update a GPU holds" in only(quick(*works, **small), "memory").fact


def test_a_model_that_no_plan_knows_is_told_and_does_not_stop_a_launch() -> None:
    check = only(quick(decoder=shape_of), "memory")
    assert (check.status, check.remedy) == ("warn", "look at the first step")
    assert "the size of 'org/model' is not known" in check.fact


def test_a_retrieval_service_that_does_not_answer_fails() -> None:
    def silent(config: Any) -> None:
        raise UserError("no connection; is it running?")

    assert only(quick(healthy=silent), "retrieval").line == "fail  retrieval: no connection; is it running?"


def test_a_service_of_this_machine_is_another_one_on_every_node() -> None:
    check = only(quick("cluster.nodes=2", address="auto"), "retrieval")
    assert (check.status, check.fact) == (
        "warn",
        "http://127.0.0.1:8013 answers here, and means another machine on each node",
    )
    assert only(quick("cluster.nodes=2", "data.server=http://head:8013", address="auto"), "retrieval").status == "ok"


@pytest.mark.parametrize(
    ("address", "asked"),
    [("10.0.0.1:6380", ("10.0.0.1", 6380)), ("ray://head:10002", ("head", 10002)), ("[::1]:6379", ("::1", 6379))],
)
def test_a_ray_cluster_is_asked_in_the_place_of_the_gpus(address: str, asked: tuple[str, int]) -> None:
    seen: list[tuple[str, int]] = []

    def silent(host: str, port: int) -> bool:
        seen.append((host, port))
        return False

    checks = quick(address=address, reaches=silent, gpu_bytes=list)
    assert seen == [asked]
    assert "ray start --head" in only(checks, "Ray").remedy
    assert "GPUs" not in [check.name for check in checks]


def test_several_nodes_want_a_cluster_that_joins_them() -> None:
    check = only(quick("cluster.nodes=2", "data.server=http://head:8013"), "Ray")
    assert check.line.startswith(
        "fail  Ray: cluster.nodes is 2, and without --address Ray is started on this one alone"
    )


def test_the_machines_behind_an_address_are_looked_at() -> None:
    there = ("cluster.nodes=2", "data.server=http://head:8013")
    checks = quick(*there, address="auto")
    assert failures(checks) == []
    assert only(checks, "Ray").fact == "2 nodes with 8 GPUs or more (10.0.0.1 with 8, 10.0.0.2 with 8)"
    assert "by the plan" in only(checks, "memory").fact

    def nodes(*found: Node) -> Any:
        return lambda address: list(found)

    one, small = Node("a", 8, (80 * GIB,) * 8), Node("b", 4, (80 * GIB,) * 4)
    fact = only(failures(quick(*there, address="auto", nodes=nodes(one, small))), "Ray").fact
    assert fact == "1 nodes with 8 GPUs or more (a with 8, b with 4), of 2"
    old = Node("c", 8, (16 * GIB,) * 8, ("verl is 0.8",))
    failed = failures(quick(*there, address="auto", nodes=nodes(one, old)))
    assert [check.name for check in failed] == ["versions", "memory"]
    assert only(failed, "versions").fact == "on c: verl is 0.8"
    assert "of each GPU, but gpu_memory_fraction 0.5 * 17.2 GB" in only(failed, "memory").fact


def test_a_cluster_that_cannot_be_asked_fails_with_its_last_words() -> None:
    def silent(address: str) -> list[Node]:
        raise UserError("the Ray cluster auto cannot be asked (no such cluster); look at ray status")

    assert "no such cluster" in only(quick(address="auto", nodes=silent), "Ray").fact


def test_verl_that_does_not_know_the_trainer_is_told_with_its_own_words(model: Path) -> None:
    checks = whole(model, trainer=lambda: "ValueError: Unknown trainer")
    (check,) = [check for check in checks if check.name == "plug-in"]
    assert (check.status, check.fact) == (
        "fail",
        "verl does not know the trainer 'mempo' (ValueError: Unknown trainer)",
    )


def test_agent_and_questions_are_tried(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    rows = [{"id": str(n), "question": f"q {n}", "answer": "a"} for n in range(9)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    paths = (f"data.train={file}", f"data.test={file}")
    checks = whole(model, *paths, "rl.questions_per_step=4")
    assert failures(checks) == []
    assert only(checks, "agent").fact == f"tokenizer of {make_tokenizer().size} tokens, no chat template"
    # Nine questions make four of two objectives each; the last one is left over.
    assert only(checks, "data").fact.startswith("4 training questions, 4 test questions; ")
    checks = whole(model, *paths, "rl.questions_per_step=8")
    assert "4 < 8" in only(checks, "data").fact


@pytest.mark.parametrize("name", ["train.jsonl", "index"])
def test_files_that_are_missing_fail(name: str, model: Path, tmp_path: Path) -> None:
    missing = {"index": ("data.server=null", f"data.index={tmp_path / name}")}
    checks = whole(model, *missing.get(name, (f"data.train={tmp_path / name}",)))
    assert str(tmp_path / name) in only(checks, "data").fact


def test_an_adapter_is_no_model(model: Path, tmp_path: Path) -> None:
    for file in model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "adapter_config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    assert "adapter" in only(quick(f"model.path={tmp_path}"), "model").fact


@pytest.mark.parametrize(("family", "runs"), [("qwen2", True), ("llama", True), ("gpt_neox", False), ("gpt2", False)])
def test_a_family_that_verl_cannot_read_is_refused(family: str, runs: bool, tmp_path: Path) -> None:
    tiny_model(family, make_tokenizer()).model.config.save_pretrained(tmp_path)
    if runs:
        assert Machine().shape(str(tmp_path)).heads == 2
    else:
        with pytest.raises(UserError, match=rf"is a {family}, .* lacks num_key_value_heads"):
            Machine().shape(str(tmp_path))
