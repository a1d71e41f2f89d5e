"""Benchmarks of the pipeline: ingest, scans, decoding, and how fresh the tables are.

Modules:

    boat_cluster     A cluster of real nodes that takes boats over mTLS, and the certificates of those boats
    decode_measure   How fast frames become signals on one core, against the `nmea2000` package
    freshness_bench  `tidelog bench freshness`
    freshness_boats  The fleet of `tidelog bench freshness`
    pipeline_bench   `tidelog bench pipeline`
    pipeline_cases   What `tidelog bench pipeline` times
    pipeline_logs    Logs for the pipeline's benchmarks
    tuple_source     The Spark source as it would be if it gave out tuples
"""
