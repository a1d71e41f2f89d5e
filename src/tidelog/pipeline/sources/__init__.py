"""Reading channels: logs in a folder or a cluster, and Spark's data source over them.

Modules:

    address          Where the logs of the pipeline are, and opening them
    cluster_logs     Logs of a cluster, through the native client
    columns          Blocks to Arrow batches in the schemas that Spark and the tables use, narrow on request
    folder_logs      Logs in a folder
    folder_segments  Segment files of one log, read without changing them, also while another process appends to them
    logs             Where the pipeline's blocks come from
    planning         From the ends of channels to pieces, and from pieces to tasks
    rows             The rows of one task of the data source
    source           `spark.read.format("tidelog")`
    source_options   What a user may say to `format("tidelog")`
    stream_source    `spark.readStream.format("tidelog")`
"""
