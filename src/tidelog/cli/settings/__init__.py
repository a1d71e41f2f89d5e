"""The settings of processes: flags, environment and HOCON file, one module per process or part of one.

Modules:

    boat            The settings of `tidelog boat`
    channel_limits  The settings of `tidelog node` that bound what clients may leave behind
    checks          Checks of settings that look at the machine
    cloud           The settings of `tidelog cloud`
    common          Settings that `tidelog boat` and `tidelog cloud` have in common
    gateway         The settings of `tidelog node` for the Liftbridge gateway
    groups          The settings of `tidelog node` for consumer groups
    lplex           Settings of lplex-server and lplex-cloud that Tidelog accepts without doing what they ask
    nats            The settings of `tidelog node` for NATS: which servers it may use and how
    node            The settings of `tidelog node`
    page            The settings as `-help` prints them and as the tables of docs/configuration.md
"""
