"""The channel of a boat: folds over its log, events, devices, history. Streams are in `cluster.uplink`.

Modules:

    channel      A boat's channel on its leader
    channel_log  Opening a boat's log
    events       Events between one boat and the cluster
    history      Past frames of a channel's log, between two times of the boat's clock
    runs         The run of an lplex boat that a block belongs to
    state_file   `state.json` and `devices.json`
    view         The read-only view of a running cloud
    watch        Events, counters, devices and live frames of one boat
"""
