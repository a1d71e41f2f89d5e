"""A process with another PySpark that has Delta's own connector: it runs the SQL statements it is sent, line by line.

    python delta_spark_writer.py JARS

Not imported by tests: it runs in an environment of its own, since no connector exists for the PySpark of Tidelog.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession


def main() -> None:
    jars = ",".join(str(path) for path in sorted(Path(sys.argv[1]).glob("*.jar")))
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", jars)
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .getOrCreate()
    )
    print(json.dumps({"ready": spark.version}), flush=True)
    for line in sys.stdin:
        try:
            spark.sql(json.loads(line)).collect()
            answer: dict[str, str | None] = {"error": None}
        except Exception as error:
            answer = {"error": str(error)[:2_000]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
