"""How far a measurement is: lines of rounds where there is no terminal, names that fit a bar."""

from __future__ import annotations

import pytest

from fastloop.sweep import progress


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


def test_time_left_is_that_of_the_steps_left(clock_s):
    start_ns = progress.now_ns()
    clock_s[0] += 30
    line = progress.round_line("round 2 of 9", start_ns, done=6, left=25)
    assert line == "round 2 of 9: 00:30 elapsed, about 02:05 left"


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
