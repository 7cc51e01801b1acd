"""Judge published claims about the speed of loaders, each by two jobs of one sweep, and render the
page of the judgements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fastloop.core import stats
from fastloop.reporting.page import render_page
from fastloop.suite.round_files import LoadedRound
from fastloop.suite.suite_file import SuiteFile
from fastloop.suite.workloads import SuiteRow, SuiteWorkload

TEMPLATE = Path(__file__).with_name("claims.html.jinja")
Outcome = Literal["holds", "does not hold", "undecided", "measured, not ranked", "not measured"]
ROWS = ("dataset=mydataset", "dataset.count=10000", "dataset.shape=[5]", "batch_size=256")
"""The data of pytorch#10260: 10,000 rows of five floats."""
SMALL_ROWS = ("dataset=mydataset", "dataset.count=20000", "batch_size=1024")
JPEGS = ("dataset=photos", "dataset.count=200", "dataset.crop=[375,500]", "batch_size=32")
CROPS = (*JPEGS, "transform=random_resized_crop")
PR_10260 = "https://github.com/pytorch/pytorch/pull/10260"
PR_166732 = "https://github.com/pytorch/pytorch/pull/166732"
NOT_IN_FILE = "this file does not have it"
NOT_PAIRED = "its two rows have different numbers of windows"
LIGHTNING_SPEED = "https://lightning.ai/docs/pytorch/stable/advanced/speed.html"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A published sentence that one way of loading is faster than another by some factor."""

    name: str
    says: str
    """The claim in a sentence."""
    source: str
    """Address of the page."""
    date: str
    """Day of the source, or the day on which an undated page was read."""
    condition: str
    """The conditions of this measurement, and how they differ from the source's."""
    common: tuple[str, ...]
    """Overrides of both jobs."""
    slow: SuiteRow
    """The way that is claimed to be slower."""
    fast: SuiteRow
    """The way that is claimed to be faster."""
    least: float
    """The least factor by which `fast` is faster, according to the claim."""

    @property
    def workload(self) -> SuiteWorkload:
        """The two jobs as a workload of the suite."""
        return SuiteWorkload(
            name=self.name,
            title=self.says,
            overrides=(*self.common, "epochs=2"),
            quick=(),
            rows=(self.slow, self.fast),
        )


@dataclass(frozen=True, kw_only=True)
class JudgedClaim:
    """A claim, and the measurement that judges it."""

    claim: Claim
    outcome: Outcome
    factor: stats.Ratio | None = None
    """Seconds of `slow` / seconds of `fast`, paired by round; None if they can't be compared."""
    reason: str = ""
    """The reason why the claim is not decided; empty if it holds or does not hold."""


def _row(loader: str, *overrides: str) -> SuiteRow:
    return SuiteRow(loader=loader, configuration="tuned", overrides=overrides)


CLAIMS = (
    Claim(
        name="batched_access",
        says="Indexing a TensorDataset once a batch is 15 times as fast as once a row",
        source=PR_10260,
        date="2018-08-06",
        condition="no workers, 10,000 rows of 5 floats, batches of 256, as there",
        common=ROWS,
        slow=_row("dataloader"),
        fast=_row("getitems"),
        least=15.0,
    ),
    Claim(
        name="batched_access_one_worker",
        says="With one worker, indexing once a batch is 1.48 times as fast as once a row",
        source=PR_10260,
        date="2018-08-06",
        condition="one worker, the same data",
        common=ROWS,
        slow=_row("dataloader", "num_workers=1"),
        fast=_row("getitems", "num_workers=1"),
        least=1.48,
    ),
    Claim(
        name="batched_access_two_workers",
        says="With two workers, indexing once a batch is 1.35 times as fast as once a row",
        source=PR_10260,
        date="2018-08-06",
        condition="two workers, the same data",
        common=ROWS,
        slow=_row("dataloader", "num_workers=2"),
        fast=_row("getitems", "num_workers=2"),
        least=1.35,
    ),
    Claim(
        name="no_worker_for_rows",
        says="Rows in memory load 4.3 times as fast without a worker as with one",
        source=PR_10260,
        date="2018-08-06",
        condition="the same data",
        common=ROWS,
        slow=_row("dataloader", "num_workers=1"),
        fast=_row("dataloader"),
        least=4.3,
    ),
    Claim(
        name="slicing",
        says="Slicing tensors is about 4 times as fast as a DataLoader over a TensorDataset",
        source="https://github.com/shenweichen/DeepCTR-Torch/issues/70",
        date="2019-12-08",
        condition="20,000 rows of 784 floats in batches of 1,024; the source names large batches",
        common=SMALL_ROWS,
        slow=_row("dataloader"),
        fast=_row("index_loop"),
        least=4.0,
    ),
    Claim(
        name="slicing_at_least_3",
        says="A DataLoader over tensors in memory is 3 to 124 times as slow as slicing",
        source="https://github.com/pytorch/pytorch/pull/181501",
        date="2026-04-26",
        condition="two workers, as the source compares num_workers > 0; 784 floats a row",
        common=SMALL_ROWS,
        slow=_row("dataloader", "num_workers=2"),
        fast=_row("index_loop"),
        least=3.0,
    ),
    Claim(
        name="getitems_of_tensordict",
        says="TensorDict's own indexing of a batch is much faster than an access for each row",
        source="https://github.com/pytorch/tensordict/issues/374",
        date="2023-05-08",
        condition="a tensorclass in memory; the source gives no factor, 1 is tested",
        common=SMALL_ROWS,
        slow=_row("preload"),
        fast=_row("tensorclass"),
        least=1.0,
    ),
    Claim(
        name="spdl_images",
        says="SPDL iterates over images 74 % faster than PyTorch's DataLoader",
        source="https://arxiv.org/abs/2504.20067",
        date="2025-04-23",
        condition="random crops of photographs, DataLoader with two workers; the source: ImageNet",
        common=CROPS,
        slow=_row("raw", "num_workers=2"),
        fast=_row("spdl"),
        least=1.74,
    ),
    Claim(
        name="spdl_three_times",
        says="It is not uncommon to see 3 times the throughput after a switch to SPDL",
        source="https://facebookresearch.github.io/spdl/0.4.0/migration/why.html",
        date="2026-11-25",
        condition="plain JPEG files, DataLoader with two workers; the source names no data",
        common=JPEGS,
        slow=_row("raw", "num_workers=2"),
        # The default store of spdl has decoded images.
        fast=_row("spdl", "loader.store=null"),
        least=3.0,
    ),
    Claim(
        name="stateful_no_slower",
        says="Statefulness does not make a DataLoader slower",
        source=PR_166732,
        date="2025-10-31",
        condition="torchdata's StatefulDataLoader without workers; 5 % are allowed",
        common=("dataset=mydataset", "dataset.count=20000", "batch_size=256"),
        slow=_row("raw"),
        fast=_row("torchdata"),
        least=0.95,
    ),
    Claim(
        name="stateful_no_slower_with_workers",
        says="Statefulness does not make a DataLoader with 4 workers slower",
        source=PR_166732,
        date="2025-10-31",
        condition="torchdata's StatefulDataLoader with four workers; 5 % are allowed",
        common=("dataset=mydataset", "dataset.count=20000", "batch_size=256"),
        slow=_row("raw", "num_workers=4"),
        fast=_row("torchdata", "num_workers=4"),
        least=0.95,
    ),
    Claim(
        name="workers_for_images",
        says="Set num_workers > 0 for speed",
        source=LIGHTNING_SPEED,
        date="2026-11-25",
        condition="random crops of photographs, two workers; the source names no data",
        common=CROPS,
        slow=_row("raw"),
        fast=_row("raw", "num_workers=2"),
        least=1.0,
    ),
    Claim(
        name="workers_for_rows",
        says="Set num_workers > 0 for speed",
        source=LIGHTNING_SPEED,
        date="2026-11-25",
        condition="rows in memory, two workers; the source names no data",
        common=SMALL_ROWS,
        slow=_row("raw"),
        fast=_row("raw", "num_workers=2"),
        least=1.0,
    ),
    Claim(
        name="turbojpeg_twice",
        says="libjpeg-turbo decodes JPEG files 2 to 3 times as fast as Pillow",
        source="https://github.com/roboflow/rf-detr/issues/1391",
        date="2026-08-22",
        condition="the whole loop over files of 375x500, by simplejpeg",
        common=JPEGS,
        slow=_row("raw", "decoder=pil"),
        fast=_row("raw", "decoder=turbojpeg"),
        least=2.0,
    ),
    Claim(
        name="simplejpeg_arrays",
        says="simplejpeg decodes 1.3 to 1.8 times as fast where an array is wanted",
        source="https://github.com/roboflow/rf-detr/pull/1473",
        date="2026-09-16",
        condition="the whole loop over files of 256x256, which include reading and batching",
        common=("dataset=photos", "dataset.count=400", "batch_size=64"),
        slow=_row("raw", "decoder=pil"),
        fast=_row("raw", "decoder=turbojpeg"),
        least=1.3,
    ),
    Claim(
        name="pillow_against_opencv",
        says="Pillow is very slow compared to OpenCV",
        source="https://pypi.org/project/simplejpeg/1.7.1",
        date="2026-11-25",
        condition="the whole loop over files of 375x500; the source gives no factor, 1 is tested",
        common=JPEGS,
        slow=_row("raw", "decoder=pil"),
        fast=_row("raw", "decoder=opencv"),
        least=1.0,
    ),
    Claim(
        name="opencv_against_pillow",
        says="Pillow loads JPEG images about 10 % faster than OpenCV",
        source="https://github.com/chaiNNer-org/chaiNNer/pull/1664",
        date="2023-03-21",
        condition="the whole loop over files of 375x500",
        common=JPEGS,
        slow=_row("raw", "decoder=opencv"),
        fast=_row("raw", "decoder=pil"),
        least=1.1,
    ),
)
CLAIMED_WORKLOADS = tuple(claim.workload for claim in CLAIMS)


def judge(claim: Claim, document: SuiteFile) -> JudgedClaim:
    """Judge the claim by the windows (timed parts of trials) in a file."""
    cells = {cell.label: cell for cell in document.cells if cell.workload == claim.name}
    slow, fast = cells.get(claim.slow.label), cells.get(claim.fast.label)
    if slow is None or fast is None:
        return JudgedClaim(claim=claim, outcome="not measured", reason=NOT_IN_FILE)
    if reason := slow.null_reason or fast.null_reason:
        return JudgedClaim(claim=claim, outcome="not measured", reason=reason)
    # The windows of such a row can't be compared, for example because it delivers other data.
    if reason := slow.unranked_reason or fast.unranked_reason:
        return JudgedClaim(claim=claim, outcome="measured, not ranked", reason=reason)
    return _judge_factor(claim, slow.seconds, fast.seconds)


def _judge_factor(claim: Claim, slow: Sequence[float], fast: Sequence[float]) -> JudgedClaim:
    """Judge the claim by the seconds of the windows of both rows.

    The claim holds if the lower end of the factor's 95 % interval is at least the claimed factor.
    It does not hold if the upper end is below the claimed factor.
    """
    factor = stats.ratio_or_range(slow, fast)
    if factor is None:
        return JudgedClaim(claim=claim, outcome="undecided", reason=NOT_PAIRED)
    if not factor.is_interval:
        reason = f"{len(slow)} windows have no interval"
        return JudgedClaim(claim=claim, outcome="undecided", factor=factor, reason=reason)
    if factor.low >= claim.least:
        return JudgedClaim(claim=claim, outcome="holds", factor=factor)
    if factor.high < claim.least:
        return JudgedClaim(claim=claim, outcome="does not hold", factor=factor)
    reason = f"the interval of {len(slow)} windows includes {claim.least:g}"
    return JudgedClaim(claim=claim, outcome="undecided", factor=factor, reason=reason)


def describe_judgement(judged: JudgedClaim) -> str:
    """A line with the outcome, the measured factor, and the claim.

    Without a factor, the line has the outcome and the reason instead.
    """
    claim, factor = judged.claim, judged.factor
    if factor is None:
        return f"{claim.name}: {judged.outcome}: {judged.reason}"
    measured = f"{factor.estimate:.2f} times as fast ({factor.low:.2f} to {factor.high:.2f})"
    reason = f"; {judged.reason}" if judged.reason else ""
    return (
        f"{claim.name}: {judged.outcome}: {measured}{reason}, claimed: {claim.least:g} or more: "
        f"{claim.says}"
    )


def render_claims(rounds: list[LoadedRound], page: str = "index.html") -> str:
    """The page of claims. For each machine, a claim is judged by the newest round that has it.

    rounds: oldest first. page: the name of the page of loaders beside it; empty without one.
    """
    machines = [*dict.fromkeys(each.machine for each in rounds)]
    judged = [
        (loaded, judge(claim, loaded.document))
        for machine in machines
        for claim in CLAIMS
        for loaded in [_newest_with(claim, [each for each in rounds if each.machine == machine])]
    ]
    used = {(loaded.machine, loaded.round): loaded for loaded, _ in judged}
    return render_page(
        TEMPLATE, judged=judged, rounds=[*used.values()], machines=machines, page=page
    )


def _newest_with(claim: Claim, rounds: list[LoadedRound]) -> LoadedRound:
    """The newest round that has a cell of the claim; the newest round if none has one."""
    # A round that was ended early, or that measures some claims again, lacks the others.
    having = [
        each for each in rounds if any(cell.workload == claim.name for cell in each.document.cells)
    ]
    return (having or rounds)[-1]
