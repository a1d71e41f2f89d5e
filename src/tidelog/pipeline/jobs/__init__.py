"""The jobs that fill tables, and the process that runs them.

Modules:

    checkpoint     What a stream's checkpoint folder says, read without Spark
    cursors        The named cursors of a pipeline in the log
    frames_job     Channels into the table `frames`
    frames_tasks   What a task of the frames job does
    lost_ranges    The table `lost_ranges`
    runner         A pipeline as a whole
    signals_job    `frames` into `signals`, `undecoded` and `devices`
    signals_state  What decoding must remember of a channel from one step to the next
    signals_tasks  What a task of the signals job does
    slow_stages    The stages that take their time, gold and the rewriting of small files
    supervisor     Whether a stage that failed is started again, and when
    task_runs      The orders of one step, each carried out once
"""
