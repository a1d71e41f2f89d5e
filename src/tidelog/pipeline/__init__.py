"""Channels to tables with Spark. `engine` is the only module that starts Spark.

Modules:

    audit        Proof that journal, log, replicas and table hold the same frames, and which differ if any do
    engine       Spark for the pipeline
    fingerprint  A count and a checksum per stretch of frames
    gold/        Gold
    jobs/        The jobs that fill tables, and the process that runs them
    local_paths  Absolute paths of folders and files; addresses of object stores are refused
    report/      The HTML report of a run
    settings     The settings of a pipeline
    sinks/       Writing rows of Spark to a channel, each once
    sources/     Reading channels: logs in a folder or a cluster, and Spark's data source over them
    tables/      Tables of Delta or Iceberg: transactions that hold rows and positions together
"""
