"""Counts rows with readers that Tidelog's environment does not have; run as a program, with only them in its path.

They go into a folder of their own, since both want other versions of what Tidelog is tested with:

    pip install --target FOLDER duckdb==1.5.5 duckdb-extension-delta==1.5.5 duckdb-extensions==1.5.5
    pip install --target FOLDER pyspark==4.2.0 delta-spark==4.4.0

FOLDER/jars holds delta-spark_4.2_2.13, delta-storage and whatever else their POM on Maven Central names. Then
TIDELOG_READER_TOOLS=FOLDER makes test_reader_matrix.py ask them.

    python peer_readers.py duckdb-delta|delta-spark ASKED.json FOUND.json
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def ask_duckdb(asked: dict[str, list[str]]) -> dict[str, list[int]]:
    import duckdb
    from duckdb_extensions import import_extension  # type: ignore[import-not-found, unused-ignore]

    import_extension("delta")
    database = duckdb.connect()
    database.sql("load delta")
    database.sql("set timezone = 'UTC'")

    def count(folder: str, where: str) -> int:
        (found,) = database.sql(f"select count(*) from delta_scan('{folder}') where {where}").fetchall()
        return int(found[0])

    return {folder: [count(folder, where) for where in wheres] for folder, wheres in asked.items()}


def ask_spark(asked: dict[str, list[str]]) -> dict[str, list[int]]:
    from pyspark.sql import SparkSession

    jars = Path(os.environ["PYTHONPATH"]) / "jars"
    settings = {
        "spark.jars": ",".join(str(jar) for jar in sorted(jars.glob("*.jar"))),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        # Compiling the plan of a query to Java costs far more than to run it over so few rows.
        "spark.sql.codegen.wholeStage": "false",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    found = {}
    for folder, wheres in asked.items():
        rows = spark.read.format("delta").load(folder)
        found[folder] = [rows.where(where).count() for where in wheres]
    return found


if __name__ == "__main__":
    reader, source, target = sys.argv[1:]
    answers = {"duckdb-delta": ask_duckdb, "delta-spark": ask_spark}[reader](json.loads(Path(source).read_text()))
    Path(target).write_text(json.dumps(answers))
