"""Which options fit samples that differ in length, and the order that is told the lengths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fastloop.prepared import sample_lengths
from fastloop.protocols import Benchmark, ByLength, Collate, Dataset, Order
from fastloop.ragged import is_ragged
from fastloop.types import Plan, Prepared, Unsupported


def check_lengths(
    dataset: Dataset, collate: Collate, order: Order, benchmarks: Mapping[str, Benchmark]
) -> None:
    """Raise Unsupported where one of these takes samples of one length and others come, or the
    other way round."""
    if not is_ragged(dataset):
        same = f"the samples of dataset {dataset.label} do not differ in length"
        if collate.takes == "ragged":
            raise Unsupported(f"collate={_name(collate)}: {same}")
        if isinstance(order, ByLength):
            raise Unsupported(f"order={_name(order)}: {same}")
    elif collate.takes != "ragged":
        raise Unsupported(f"dataset {dataset.label}: samples differ in length: use collate=pad")
    elif modelled := [name for name, one in benchmarks.items() if one.limit == "replay"]:
        why = "there is no model for samples that differ in length yet"
        raise Unsupported(f"benchmark={modelled[0]}: {why}; benchmark=traversal runs")


def told_lengths(plan: Plan, prepared: Prepared) -> Plan:
    """The plan, its order told how long each sample is where it asks for that."""
    if not isinstance(plan.order, ByLength):
        return plan
    return replace(plan, order=plan.order.with_lengths(sample_lengths(prepared)))


def _name(option: object) -> str:
    return type(option).__module__.rpartition(".")[2]
