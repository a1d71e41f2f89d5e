"""Writing rows of Spark to a channel, each once.

Modules:

    publisher  Blocks into a channel under one producer that is kept across processes
    sink       `df.write.format("tidelog")` and `writeStream`
    staging    Batches to publish, on disk before their first record is sent
"""
