"""Writing rows of Spark to a channel, each once.

Modules:

    publisher  Blocks into a channel under one producer that outlives the process
    sink       `df.write.format("tidelog")` and `writeStream`
    staging    What a sink has promised to publish, on disk before a record of it leaves
"""
