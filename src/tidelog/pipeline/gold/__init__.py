"""Gold: the tables that answer questions, computed from `signals` and `frames`.

Every table is partitioned by (day, channel). A builder is a pure function from Spark DataFrames to the
rows of the partitions it was given; `gold_job` decides which partitions those are and replaces the ones
whose content changed. Nothing here runs Python code per row.

GD1  The same input gives the same rows, bit for bit: sums are taken over integers or in a fixed order, and
    every choice among equals is ordered. A re-run therefore finds nothing to replace.
GD2  A partition depends on `signals` of its own day alone; `trips` and `fleet_health` look further, and
    say how far.
GD3  All days and hours are UTC, whatever the time zone of the session.

Modules:

    columns       Which signal feeds which gold column
    coverage      `coverage`
    electrical    `electrical`
    engine        `engine`
    environment   `environment`
    fleet_health  `fleet_health`
    gold_job      Keeps the gold tables up with `signals` and `frames`
    health_steps  Which days of a boat new frames touch, and from which files an hour's coverage must be taken
    hourly        Minimum, mean and maximum per hour
    moments       Time and place as Spark expressions
    partitions    Partitions in and out
    schemas       The layout of every gold table, in Arrow
    tracks        `tracks`
    trip_days     Which days must be looked at together to find the trips of a few of them
    trip_steps    Trips of the days that changed
    trips         `trips`
"""
