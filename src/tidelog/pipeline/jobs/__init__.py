"""The jobs that fill tables, and the process that runs them.

Modules:

    checkpoint     A stream's checkpoint folder, read without Spark
    clock_shifts   The table `clock_shifts`
    cursors        The named cursors of a pipeline in the log
    frames_job     Channels into the table `frames`
    frames_tasks   A task of the frames job
    lost_ranges    The table `lost_ranges`
    rebuild        Building a table anew, from the log or from the table below
    runner         The whole pipeline: its stages
    signals_job    `frames` into `signals` and the tables beside it
    signals_state  The decoder's state of a channel between two steps
    signals_tasks  A task of the signals job
    slow_stages    The slow stages, gold and the rewriting of small files, in a thread
    supervisor     Whether and when a failed stage is started again
    task_runs      The orders of one step, each carried out once
"""
