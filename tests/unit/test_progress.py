"""How far a measurement is: lines of rounds where there is no terminal, names that fit a bar."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable

import pytest
from torch.utils.data import DataLoader

from fastloop.core import bars
from fastloop.sweep import progress
from fastloop.trial.job_start import start_job


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def open_terminal(monkeypatch) -> Callable[[], Terminal]:
    """Replaces stderr by a terminal, inside of the test: pytest sets it anew as a test begins."""

    def replace() -> Terminal:
        shown = Terminal()
        monkeypatch.setattr(sys, "stderr", shown)
        monkeypatch.setattr(progress, "TICK_S", 0.01)
        return shown

    return replace


def wait_for_drawings(shown: Terminal, count: int) -> None:
    """Return once so many further drawings have been made."""
    before = shown.getvalue().count("\r")
    while shown.getvalue().count("\r") < before + count:
        time.sleep(0.01)


@pytest.fixture
def clock_s(monkeypatch) -> list[float]:
    """A list whose only item is the present time."""
    seconds = [100.0]
    monkeypatch.setattr(progress, "now_ns", lambda: int(seconds[0] * 1e9))
    return seconds


def test_rounds_of_a_sweep_are_lines_where_there_is_no_terminal(capfd):
    with progress.show_progress(4) as sweep:
        sweep.begin_step("trial 1 of raw digits")
        sweep.end_round("round 1 of 2: 00:03 elapsed, about 00:03 left")
    output = capfd.readouterr()
    assert output.err == "round 1 of 2: 00:03 elapsed, about 00:03 left\n"
    assert output.out == ""


def test_steps_of_a_command_without_rounds_are_lines_where_there_is_no_terminal(clock_s, capfd):
    with progress.show_progress(4, "explain") as command:
        for number in range(4):
            command.begin_step(f"pass {number}")
            clock_s[0] += 6
        command.expect_steps(2)
        command.begin_step("trying decode")
    assert capfd.readouterr().err.splitlines() == [
        "explain: step 3 of 4, pass 2: 00:12 elapsed, about 00:12 left",
        "explain: step 5 of 6, trying decode: 00:24 elapsed, about 00:12 left",
    ]


def test_time_left_is_that_of_the_steps_left(clock_s):
    start_ns = progress.now_ns()
    clock_s[0] += 30
    line = progress.round_line("round 2 of 9", start_ns, done=6, left=25)
    assert line == "round 2 of 9: 00:30 elapsed, about 02:05 left"


@pytest.mark.parametrize(("limit_s", "left"), [(60, "00:30"), (20, "00:00"), (1000, "02:05")])
def test_time_left_ends_with_the_time_limit(clock_s, limit_s, left):
    """As of `fastloop check seconds=60`, which ends before all rounds have run."""
    start_ns = progress.now_ns()
    clock_s[0] += 30
    line = progress.round_line("round 2 of 9", start_ns, done=6, left=25, limit_s=limit_s)
    assert line.endswith(f"about {left} left")


def test_only_rounds_that_take_long_are_reported(clock_s, capfd):
    with progress.round_reports(40, "bench_all") as end_round:
        for _ in range(40):
            clock_s[0] += 4
            end_round()
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "bench_all: round 3 of 40: 00:12 elapsed, about 02:28 left"
    assert lines[-1] == "bench_all: round 39 of 40: 02:36 elapsed, about 00:04 left"
    assert len(lines) == 13
    with progress.round_reports(40, "bench_all") as end_round:
        for _ in range(40):
            end_round()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (43, "trial 12 of raw image_folder batch_size=128"),
        (30, "trial 12 of ra… batch_size=128"),
        (9, "tria…=128"),
        (2, "…8"),
        (0, "…"),
        (-3, "…"),
    ],
)
def test_name_of_a_step_keeps_its_end(width, shown):
    assert progress.cut_middle("trial 12 of raw image_folder batch_size=128", width) == shown


def test_bar_is_drawn_while_one_step_lasts(open_terminal):
    terminal = open_terminal()
    with progress.show_progress(4) as sweep:
        sweep.begin_step("trial 1 of raw digits")
        wait_for_drawings(terminal, 5)
        shown = terminal.getvalue()
        sweep.close()
    assert "0/4 [" in shown
    assert "trial 1 of raw digits" in shown
    after = terminal.getvalue()
    time.sleep(0.1)
    assert terminal.getvalue() == after  # nothing is drawn over what is printed then


def test_warning_of_torch_does_not_interrupt_the_bar_of_each_epoch(prepared_job):
    """A note below the table names jobs with more workers than cores."""
    job, prepared = prepared_job("loader=raw", "num_workers=1000")
    with pytest.warns(UserWarning, match="This DataLoader will create 1000 worker processes"):
        DataLoader(range(4), num_workers=1000)  # pyright: ignore[reportArgumentType]
    start_job(job, prepared, 0)
    DataLoader(range(4), num_workers=1000)  # pyright: ignore[reportArgumentType]


def test_total_follows_what_is_known_of_the_steps(open_terminal):
    terminal = open_terminal()
    with progress.show_progress(2) as command:
        for number in range(3):  # one more than there should be
            command.begin_step(f"round {number}, decode")
        wait_for_drawings(terminal, 2)
        assert "2/3 [" in terminal.getvalue()
        command.expect_steps(7)
        wait_for_drawings(terminal, 2)
        assert "2/10 [" in terminal.getvalue()
        command.begin_step("round 1 of what is tried")
        wait_for_drawings(terminal, 2)
    assert "3/10 [" in terminal.getvalue()


def test_budget_is_a_bar_that_time_alone_advances(open_terminal):
    terminal = open_terminal()
    share = [0.0]
    with progress.show_budget(lambda: share[0]) as command:
        command.begin_step("trial 1 of raw digits")
        share[0] = 0.4
        wait_for_drawings(terminal, 2)
        assert "40/100 [" in terminal.getvalue()
        share[0] = 1.7
        wait_for_drawings(terminal, 2)
    assert "100/100 [" in terminal.getvalue()
    assert "trial 1 of raw digits" in terminal.getvalue()


def test_line_that_stays_is_told_on_a_terminal_and_elsewhere(open_terminal, capfd):
    with progress.show_progress(1) as command:
        command.tell("raw digits, from one trial: traversal 12.0 ms")
    assert capfd.readouterr().err == "raw digits, from one trial: traversal 12.0 ms\n"
    terminal = open_terminal()
    with progress.show_progress(1) as command:
        command.tell("raw digits, from one trial: traversal 12.0 ms")
    assert "raw digits, from one trial: traversal 12.0 ms\n" in terminal.getvalue()


def test_rounds_of_a_call_from_python_are_a_bar_on_a_terminal(open_terminal):
    """Of bench, bench_all and explain."""
    terminal = open_terminal()
    with progress.round_reports(4, "bench") as end_round:
        end_round()
        wait_for_drawings(terminal, 2)
    assert "1/4 [" in terminal.getvalue()
    assert "bench" in terminal.getvalue()


def test_share_of_a_budget_is_a_bar_of_it(open_terminal):
    terminal = open_terminal()
    share = [0.0]
    with progress.share_reports("tune", lambda: share[0]) as begin_step:
        share[0] = 0.4
        begin_step("num_workers=2")
        wait_for_drawings(terminal, 2)
        assert "40/100 [" in terminal.getvalue()
        assert "tune: num_workers=2" in terminal.getvalue()
        share[0] = 1.7
        wait_for_drawings(terminal, 2)
    assert "100/100 [" in terminal.getvalue()


def test_share_of_a_budget_is_a_line_where_there_is_no_terminal(clock_s, capfd):
    share = [0.0]
    with progress.share_reports("tune", lambda: share[0]) as begin_step:
        begin_step("a first look")
        clock_s[0] += 30
        share[0] = 0.25
        begin_step("num_workers=2")
    line = "tune: 00:30 elapsed, 25 % of the budget: num_workers=2\n"
    assert capfd.readouterr().err == line


def test_samples_have_a_bar_on_a_terminal_alone(open_terminal, monkeypatch):
    open_terminal()
    with bars.sample_bar(7, "write_store") as bar:
        assert bar.total == 7
        assert not bar.disable
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with bars.sample_bar(7, "write_store") as bar:
        assert bar.disable
