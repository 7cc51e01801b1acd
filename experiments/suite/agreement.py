"""Compare two rounds of `fastloop suite`: do they rank the loaders alike, and how far do they
differ?

    python -m experiments.suite.agreement FILE FILE

For each workload, and for all together, it prints the number of rows that both rounds rank; the
shares of rows with equal ranks and with ranks at most one apart; the share of pairs of rows that
the rounds do not rank in opposite orders; and the factor by which the second round's ratios differ
from the first round's.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from fastloop.suite.round_agreement import CLOSE, Agreement, find_agreement, groups_of_both
from fastloop.suite.suite_file import SuiteFile, load_suite


def agreement(rounds: Sequence[SuiteFile]) -> Iterator[str]:
    """The lines of a Markdown table, a row for each workload and one for all."""
    columns = ("workload", "rows", "equal ranks", "at most one apart", "pairs not reversed")
    columns += (f"ratios within {CLOSE:.0%}", "median change of a ratio", "90th percentile")
    yield f"| {' | '.join(columns)} |"
    yield "|---|---|---|---|---|---|---|---|"
    groups = groups_of_both(rounds)
    for name, rows in groups.items():
        yield _line(name, find_agreement([rows]))
    yield _line("all", find_agreement([*groups.values()]))


def _line(name: str, found: Agreement) -> str:
    shares = (found.equal_ranks, found.near_ranks, found.kept_pairs, found.close_ratios)
    shown = [f"{share:.0%}" for share in shares]
    figures = [f"{found.median_change:.2f}", f"{found.large_change:.2f}"]
    return f"| {' | '.join([name, str(found.rows), *shown, *figures])} |"


if __name__ == "__main__":
    print("\n".join(agreement([load_suite(Path(file)) for file in sys.argv[1:3]])))
