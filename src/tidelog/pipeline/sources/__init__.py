"""Reading channels: logs in a folder or a cluster, and Spark's data source over them.

Modules:

    address          The address of the pipeline's logs, and opening them
    cluster_logs     Logs of a cluster, through the native client
    columns          Blocks to Arrow batches in the schemas that Spark and the tables use, narrow on request
    folder_logs      Logs in a folder
    folder_segments  Segment files of one log, read without changing them, also while another process appends to them
    logs             The interface to logs of a cluster or a folder
    planning         From the ends of channels to pieces, and from pieces to tasks
    rows             The rows of one task of the data source
    source           `spark.read.format("tidelog")`
    source_options   The options of `format("tidelog")`
    stream_source    `spark.readStream.format("tidelog")`
"""
