"""CPU quotas of cgroups."""

from __future__ import annotations

import pytest

from fastloop.core.cgroup import count_periods, cpu_quotas


def write_quota(folder, cores: str | float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if "cpu" in folder.parts:  # version 1
        (folder / "cpu.cfs_quota_us").write_text(str(-1 if cores == "max" else int(cores * 1e5)))
        (folder / "cpu.cfs_period_us").write_text("100000")
    else:
        (folder / "cpu.max").write_text(f"{cores if cores == 'max' else int(cores * 1e5)} 100000")


@pytest.mark.parametrize(("mount", "controllers"), [(".", ""), ("cpu", "cpu,cpuacct")])
def test_cpu_quotas_are_those_of_the_groups_above_too_in_both_versions(
    tmp_path, mount, controllers
):
    membership = tmp_path / "membership"
    membership.write_text(f"5:memory:/elsewhere\n1:{controllers}:/job/step\n")
    assert list(cpu_quotas(tmp_path, membership)) == []
    for folder, cores in [("elsewhere", 9), ("job/step", "max"), ("job", 0.5), ("", 3)]:
        write_quota(tmp_path / mount / folder, cores)
    assert list(cpu_quotas(tmp_path, membership)) == [0.5, 3]
    assert list(cpu_quotas(tmp_path, tmp_path / "none")) == []


def test_periods_are_those_of_the_group_that_was_stopped_most(tmp_path):
    membership = tmp_path / "membership"
    membership.write_text("1:cpu,cpuacct:/job/step\n")
    assert count_periods(tmp_path, membership) == (0, 0)
    for folder, stopped in (("job/step", 2), ("job", 7), ("", 0)):
        path = tmp_path / "cpu" / folder
        path.mkdir(parents=True, exist_ok=True)
        (path / "cpu.stat").write_text(f"nr_periods 9\nnr_throttled {stopped}\n")
    assert count_periods(tmp_path, membership) == (7, 9)
