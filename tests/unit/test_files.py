"""The end of a command and the report name stores with their cost, and profiles."""

from __future__ import annotations

from dataclasses import replace

from known_results import result_of

from fastloop.reporting.report_content import compose_document
from fastloop.reporting.sweep_files import file_lines

STORE = {"disk_mib": 574.2, "prepare_s": 27.13, "num_samples": 1000}


def job(loader: str, **changes: object):
    known = result_of([1.0, 1.1], samples=1000, limit=2000)
    tags = {"device": "cpu", "sweep": "a/b"}
    named = {"name": f"{loader} photos", "loader": loader, "dataset": "photos", "tags": tags}
    return replace(known, status="FINISHED", **{**named, **changes})


def test_cost_of_each_store_is_told_once():
    results = [job("raw", disk_mib=0.0), job("np_memmap", **STORE), job("fastloop", **STORE)]
    text = file_lines(results, "/out/a/b", 80)
    assert text.splitlines() == [
        "stores: np_memmap, fastloop 574 MiB, 27.1 s to write (of all samples)",
        "files:  /out/a/b",
    ]
    (table,) = [t for t in compose_document(results).appendix if t.heading == "Stores"]
    assert table.rows == (("np_memmap, fastloop", "photos", "574", "27.1", "1,000"),)


def test_profiles_are_named_where_there_are_any():
    results = [job("raw", disk_mib=0.0)]
    assert file_lines(results, "/out/a/b", 80) == "files:  /out/a/b"
    headings = [table.heading for table in compose_document(results).appendix]
    assert not {"Stores", "Profiles"} & {*headings}
    results = [job("raw", disk_mib=0.0, params=results[0].params | {"profile": True})]
    last = file_lines(results, "/out/a/b", 80).splitlines()[-1].split()
    assert last[:4] == ["profiles", "are", "in", "/out/a/b/*/:"]
    assert "Profiles" in [table.heading for table in compose_document(results).appendix]
