"""All logs of a node in one store: a shared write-ahead file, checkpoints, detected losses.

Modules:

    channel_logs     All logs of a node's channels
    checkpoint       What a checkpoint of a store writes back, its table, its statistics
    commit           One commit of a store
    losses           Synced data that the store found missing
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
    watermarks       The committed ends of channels, saved as a hint for the next start (R9)
"""
