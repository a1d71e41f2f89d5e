"""The pipeline: from channels to tables, on Spark. Needs the extra `spark`."""
