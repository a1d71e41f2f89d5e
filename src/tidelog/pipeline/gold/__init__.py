"""Gold: tables for analysis, computed from `signals` and `frames`.

Every table is partitioned by (day, channel). A builder is a pure function from Spark DataFrames to the
rows of the partitions it was given; `gold_job` decides which partitions those are and replaces the ones
whose content changed. Nothing here runs Python code per row.

GD1  The same input gives the same rows, bit for bit: sums are taken over integers or in a fixed order, and every choice
     among equals is ordered. A re-run therefore finds nothing to replace.
GD2  A partition depends on `signals` of its own day alone; `trips` and `fleet_health` look further, as their modules
     describe.
GD3  All days and hours are UTC, whatever the time zone of the session.

Modules:

    ais_targets   `ais_targets`
    columns       The signals of each gold column
    coverage      `coverage`
    electrical    `electrical`
    engine        `engine` and `engine_meters`
    environment   `environment`, `sensors` and `navigation`
    fleet_health  `fleet_health`
    gold_job      Brings the gold tables up to date with `signals` and `frames`
    health_steps  The days that new frames touch, and the files of an hour's coverage
    hourly        Minimum, mean and maximum per hour
    moments       Time and place as Spark expressions
    partitions    Reading and replacing partitions
    schemas       The layout of every gold table, in Arrow
    senders       Who sent a value
    tanks         `tanks`
    tracks        `tracks`
    trip_days     The days that must be loaded together to find trips
    trip_steps    Trips of the days that changed
    trips         `trips`
"""
