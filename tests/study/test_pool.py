"""Worker processes: each does many tasks, one that dies takes one task with it, none outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mempo.study.pool import Died, InProcess, ProcessPool, make_pool

ROOT = Path(__file__).parents[2]


def who(task: str) -> tuple[str, int]:
    if task == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return task, os.getpid()


def all_done(pool: ProcessPool | InProcess, tasks: list[str]) -> dict[str, object]:
    found, waiting = {}, list(tasks)
    with pool:
        while waiting or pool.busy:
            while waiting and pool.room:
                pool.give(waiting.pop(0))
            task, result = pool.next_done()
            found[task] = result
    return found


def test_a_worker_does_one_task_after_another_and_a_dead_one_is_replaced() -> None:
    found = all_done(ProcessPool(2, who), ["a", "b", "die", "c", "d", "e"])
    died = found.pop("die")
    assert isinstance(died, Died)
    assert "-9" in str(died)
    places = [result[1] for result in found.values()]  # type: ignore[index]
    assert [task for task, _ in found.values()] == list(found)  # type: ignore[misc]
    assert os.getpid() not in places
    assert len(set(places)) <= 3


def test_a_worker_that_was_killed_while_it_waited_is_replaced() -> None:
    with ProcessPool(2, who) as pool:
        pool.give("a")
        _, first = pool.next_done()
        assert not isinstance(first, Died)
        os.kill(first[1], signal.SIGKILL)
        assert eventually(lambda: not runs(first[1]))
        pool.give("b")
        task, second = pool.next_done()
        assert task == "b"
        assert not isinstance(second, Died)
        assert second[1] != first[1]


def test_one_worker_is_this_process() -> None:
    pool = make_pool(1, who)
    assert isinstance(pool, InProcess)
    assert all_done(pool, ["a", "b"]) == {"a": ("a", os.getpid()), "b": ("b", os.getpid())}


PARENT = """
import os, sys, time
from mempo.study.pool import ProcessPool
from tests.study.test_pool import begin_and_wait
if __name__ == "__main__":
    with ProcessPool(2, begin_and_wait) as pool:
        pool.give(sys.argv[1])
        pool.next_done()
"""


def begin_and_wait(file: str) -> None:
    Path(f"{file}.tmp").write_text(str(os.getpid()), encoding="utf-8")
    Path(f"{file}.tmp").rename(file)
    time.sleep(600)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_worker_goes_on_behind_the_back_of_a_parent_that_was_ended(tmp_path: Path, how: signal.Signals) -> None:
    (tmp_path / "parent.py").write_text(PARENT, encoding="utf-8")
    file = tmp_path / "worker"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    parent = subprocess.Popen(
        [sys.executable, str(tmp_path / "parent.py"), str(file)], env=environment, stderr=subprocess.DEVNULL
    )
    try:
        assert eventually(file.exists)
        worker = int(file.read_text("utf-8"))
        if how is signal.SIGINT:  # as a terminal does: to all of them
            os.kill(worker, how)
        parent.send_signal(how)
        assert parent.wait(60) != 0
        assert eventually(lambda: not runs(worker))
    finally:
        parent.kill()
        parent.wait()


SAVING_PARENT = """
import sys
from mempo.storage.stopping import stoppable
from mempo.study.pool import ProcessPool
from tests.study.test_pool import begin_and_save
if __name__ == "__main__":
    with stoppable(lambda: "saved"), ProcessPool(2, begin_and_save) as pool:
        pool.give(sys.argv[1])
        pool.next_done()
"""


def begin_and_save(file: str) -> None:
    try:
        begin_and_wait(file)
    finally:
        Path(f"{file}.saved").touch()


def test_a_parent_that_is_told_to_stop_lets_its_workers_save(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(SAVING_PARENT, encoding="utf-8")
    file = tmp_path / "worker"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    command = [sys.executable, str(tmp_path / "parent.py"), str(file)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as parent:
        try:
            assert eventually(file.exists)
            parent.send_signal(signal.SIGTERM)
            _, said = parent.communicate(timeout=60)
        finally:
            parent.kill()
    assert said == "mempo: stopped by SIGTERM; saved\n"  # one line: no trace, nothing of the workers
    assert parent.returncode == 128 + signal.SIGTERM
    assert Path(f"{file}.saved").exists()


def runs(process: int) -> bool:
    """Whether any thread of it is there and no zombie that waits to be collected: the first may be one while another
    still holds the files open."""
    threads = list(Path(f"/proc/{process}/task").glob("*/stat"))
    return any(state(file) not in ("Z", "X") for file in threads)


def state(file: Path) -> str:
    try:
        return file.read_text("utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def eventually(condition, seconds: float = 60.0) -> bool:  # type: ignore[no-untyped-def]
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.05)
    return False
