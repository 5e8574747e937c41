"""The Parquet files of `gapless export`, read by pyarrow: a value is the CSV's, with and without stacks and times."""

import csv
import os
import subprocess
from pathlib import Path

import pytest

GAPLESS = os.environ.get("STANDIN_GAPLESS")
TRACES = Path(__file__).resolve().parents[2] / "testdata" / "traces"


def export(trace, out):
    subprocess.run([GAPLESS, "export", str(trace), "-o", str(out)], check=True, capture_output=True)


@pytest.mark.parametrize("trace", sorted(TRACES.glob("*.pickle.gz"), key=lambda path: path.stat().st_size)[:12], ids=lambda path: path.name)
def test_every_value_is_the_one_of_the_csv(trace, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    for name in ["a.csv", "a.parquet"]:
        export(trace, tmp_path / name)
    with open(tmp_path / "a.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    table = parquet.read_table(tmp_path / "a.parquet")
    assert table.num_rows == len(rows) > 0
    assert table.column_names == list(rows[0])
    for name in table.column_names:
        read = ["" if value is None else str(value) for value in table[name].to_pylist()]
        assert read == [row[name] for row in rows], name
    # The statistics by which a reader skips row groups.
    group = parquet.ParquetFile(tmp_path / "a.parquet").metadata.row_group(0)
    sizes = [int(row["requested"]) for row in rows][: group.num_rows]
    statistics = group.column(table.column_names.index("requested")).statistics
    assert (statistics.min, statistics.max, statistics.null_count) == (min(sizes), max(sizes), 0)
