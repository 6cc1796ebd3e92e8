"""SIGTERM and Ctrl-C: what is done is saved, the exit code says why the process ended, a second one ends it at once."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from mempo.storage.run_folder import RunFolder
from mempo.storage.stopping import quiet_interrupt, stoppable
from tests.train.small import SMALL, assert_same_weights, metrics, run

TINY = ("sft.steps=4", "sft.save_every=50", "rl.steps=4", "rl.save_every=50", "evaluate.questions=1")
NAMES = {signal.SIGTERM: 143, signal.SIGINT: 130}


def python(code: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


# A step that is logged sends the signal to its own process: no clock decides when it arrives.
RUN = """
    import os, signal, sys
    import mempo.cli.main
    from mempo.storage.run_folder import RunFolder

    stage, at, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    log = RunFolder.log

    def logged(self, name, step, measures):
        if (name, step) == (stage, at):
            os.kill(os.getpid(), number)
        log(self, name, step, measures)

    RunFolder.log = logged
    sys.argv = ["mempo", *sys.argv[4:]]
    mempo.cli.main.main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", NAMES, ids=lambda n: n.name)
@pytest.mark.parametrize("stage", ["sft", "rl"])
def test_a_run_saves_the_steps_that_are_done_and_goes_on_exactly(
    tmp_path: Path, stage: str, number: signal.Signals
) -> None:
    """The signal comes in the third step, after weights have changed: it waits for the end of that step."""
    stopped = tmp_path / "stopped"
    arguments = ("train", "quickstart", *SMALL, *TINY, f"output={stopped}")
    ended = python(RUN, stage, "3", str(int(number)), *arguments)
    assert ended.returncode == NAMES[number], ended.stderr
    where = f"step 3 of {stage} is saved: mempo train {stopped} --resume continues from there"
    assert ended.stderr.strip().splitlines()[-1] == f"mempo: stopped by {number.name}; {where}"
    assert RunFolder(stopped).checkpoints()[-1].path.name == f"{stage}-3"
    assert not [path for path in stopped.rglob(".*") if path.name not in (".lock", ".mempo.json")]
    if number is signal.SIGTERM:
        run(stopped, *TINY, resume=True)
        whole = run(tmp_path / "whole", *TINY)
        assert_same_weights(stopped / "final", whole / "final")
        assert metrics(stopped, "rl") == metrics(whole, "rl")


@pytest.mark.slow
def test_a_checkpoint_that_was_being_written_is_written_all_the_same(tmp_path: Path) -> None:
    code = """
        import os, signal, sys
        import mempo.cli.main, mempo.train.checkpoint as state

        save = state.save_optimizer
        seen = []

        def saved(optimizer, path):
            if "rl-2" in str(path) and not seen:
                seen.append(path)
                os.kill(os.getpid(), signal.SIGTERM)
            save(optimizer, path)

        state.save_optimizer = saved
        sys.argv = ["mempo", *sys.argv[1:]]
        mempo.cli.main.main()
    """
    folder = tmp_path / "run"
    settings = ("rl.save_every=2", "sft.steps=1")
    ended = python(code, "train", "quickstart", *SMALL, *TINY, *settings, f"output={folder}")
    assert ended.returncode == 143, ended.stderr
    assert "step 2 of rl is saved" in ended.stderr
    assert [c.path.name for c in RunFolder(folder).checkpoints()] == ["sft-1", "rl-2"]


def test_a_second_signal_ends_at_once() -> None:
    """While the first is being answered, even by something that listens to nobody."""
    code = """
        import os, signal
        from mempo.storage.stopping import stoppable

        with stoppable(lambda: "nothing is saved"):
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                print("saving", flush=True)
                while True:
                    try:
                        os.kill(os.getpid(), signal.SIGINT)
                    except KeyboardInterrupt:
                        pass
    """
    ended = python(code)
    assert ended.stdout == "saving\n"
    assert ended.returncode == -signal.SIGINT


@pytest.mark.parametrize("number", NAMES, ids=lambda n: n.name)
def test_one_line_and_the_code(number: signal.Signals, capsys: pytest.CaptureFixture[str]) -> None:
    before = {other: signal.getsignal(other) for other in NAMES}
    try:
        with pytest.raises(SystemExit) as ended, stoppable(lambda: "step 3 is saved"):  # noqa: PT012
            os.kill(os.getpid(), number)
            signal.pause()
    finally:
        for other, handler in before.items():
            signal.signal(other, handler)
    assert ended.value.code == NAMES[number]
    assert capsys.readouterr().err == f"mempo: stopped by {number.name}; step 3 is saved\n"


class Swallowed(ImportError):
    """What a library makes of an import that was interrupted."""


def interrupted(number: signal.Signals = signal.SIGINT) -> None:
    try:
        os.kill(os.getpid(), number)
        signal.pause()
    except KeyboardInterrupt:
        raise Swallowed from None


def test_a_library_that_swallows_a_stop_does_not_hide_it(capsys: pytest.CaptureFixture[str]) -> None:
    before = {other: signal.getsignal(other) for other in NAMES}
    try:
        with pytest.raises(SystemExit) as ended, stoppable(lambda: "step 3 is saved"):
            interrupted(signal.SIGTERM)
    finally:
        for other, handler in before.items():
            signal.signal(other, handler)
    assert ended.value.code == 143
    assert capsys.readouterr().err == "mempo: stopped by SIGTERM; step 3 is saved\n"


@pytest.mark.parametrize("work", [interrupted, lambda: signal.raise_signal(signal.SIGINT)])
def test_ctrl_c_where_nothing_listens_leaves_no_trace(work: Callable[[], None]) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit) as ended, quiet_interrupt():
        work()
    assert ended.value.code == 130
    with pytest.raises(Swallowed), quiet_interrupt():  # an error of its own stays one
        raise Swallowed
    assert signal.getsignal(signal.SIGINT) is before


def test_handlers_are_put_back_where_nothing_happened() -> None:
    before = {number: signal.getsignal(number) for number in NAMES}
    with stoppable(lambda: ""):
        assert signal.getsignal(signal.SIGTERM) is not before[signal.SIGTERM]
    assert {number: signal.getsignal(number) for number in NAMES} == before


def test_a_stop_passes_through_an_event_loop() -> None:
    code = """
        import asyncio, os, signal
        from mempo.evaluate.loops import run_loop
        from mempo.storage.stopping import stoppable

        async def work():
            asyncio.get_running_loop().call_later(0.01, os.kill, os.getpid(), signal.SIGTERM)
            try:
                await asyncio.sleep(60)
            finally:
                print("tidied", flush=True)

        with stoppable(lambda: "2 rollouts are saved"):
            run_loop(work())
    """
    ended = python(code)
    assert (ended.returncode, ended.stdout) == (143, "tidied\n"), ended.stderr
    assert ended.stderr == "mempo: stopped by SIGTERM; 2 rollouts are saved\n"


@pytest.mark.slow
def test_what_a_killed_run_left_half_written_is_swept_at_the_next_start(tmp_path: Path) -> None:
    code = """
        import os, signal, sys
        import mempo.cli.main, mempo.train.checkpoint as state

        save = state.save_optimizer

        def saved(optimizer, path):
            save(optimizer, path)
            if "rl-2" in str(path):
                os.kill(os.getpid(), signal.SIGKILL)

        state.save_optimizer = saved
        sys.argv = ["mempo", *sys.argv[1:]]
        mempo.cli.main.main()
    """
    folder = tmp_path / "run"
    settings = ("rl.save_every=1", "sft.steps=1")
    ended = python(code, "train", "quickstart", *SMALL, *TINY, *settings, f"output={folder}")
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    left = list(folder.rglob(".*.tmp-*"))
    assert [path.name.split(".tmp-")[0] for path in left] == [".rl-2"]
    (folder / "rollouts" / f".step-9.jsonl.{left[0].name.split('.')[-1]}").write_text("half")
    shutil.copytree(left[0], folder / f".final.old-{left[0].name.split('-', 2)[2]}")
    run(folder, *TINY, *settings, resume=True)
    assert not [path for path in folder.rglob(".*") if path.name not in (".lock", ".mempo.json")]
