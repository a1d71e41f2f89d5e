"""Gold: the tables that answer questions, computed from `signals` and `frames`.

Every table is partitioned by (day, channel). A builder is a pure function from Spark DataFrames to the
rows of the partitions it was given; `gold_job` decides which partitions those are and replaces the ones
whose content changed. Nothing here runs Python code per row.

G1  The same input gives the same rows, bit for bit: sums are taken over integers or in a fixed order, and
    every choice among equals is ordered. A re-run therefore finds nothing to replace.
G2  A partition depends on `signals` of its own day alone; `trips` and `fleet_health` look further, and
    say how far.
G3  All days and hours are UTC, whatever the time zone of the session.
"""
