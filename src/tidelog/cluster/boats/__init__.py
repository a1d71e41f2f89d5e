"""What a boat's channel holds and tells: folds over its log, events, devices, history. Knows no streams.

Modules:

    channel      A boat's channel on its leader
    channel_log  Opening a boat's log
    events       What happened between one boat and the cluster
    history      Frames of the past, from a channel's log, between two times of the boat's clock
    runs         Which run of an lplex boat a block of its files is of
    state_file   `state.json` and `devices.json`
    view         What others may ask a running cloud
    watch        What the cloud tells about one boat beyond the protocol
"""
