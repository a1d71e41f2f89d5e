"""All logs of a node in one store: a shared write-ahead file, checkpoints, what a disk lost.

Modules:

    channel_logs     All logs of a node's channels
    checkpoint       What a checkpoint of a store decides and what a store says of itself
    commit           One commit of a store
    losses           What a store knows to have lost although it was synced
    names            Channel names as file names
    open_channels    The open channels of a store and the write-ahead files behind them
    parts            What a store is made of
    recovery         Opening a store
    reserve          Disk space that appends leave alone, so that truncation
    restaging        Giving a log the blocks that only the write-ahead files hold
    scrub            Scrubbing all channels of a store, one after the other, within one rate
    store            All channels of a node behind one write-ahead file
    stored_channels  A store, read without changing it
    wal              The write-ahead file of a store
    wal_mark         How far the write-ahead files were durable, remembered outside of them
    wals             The write-ahead files of a store
    watermarks       How far channels were committed when the node last looked, as a hint for its next life (R9)
"""
