"""The `tidelog` command. One module per group of commands; what a command needs is imported when it runs (`lazy`).

Modules:

    bench_commands     `tidelog bench`
    channels/          `tidelog channel`, `pub`, `sub`, `group` and `producer`
    cluster/           `tidelog cluster`, `ca` and `token`: who belongs to the cluster and who may do what
    demo/              `tidelog demo`: boats, nodes, a link that is cut, a pipeline, and a check of every frame
    disk_trouble       What a process of ours does when its disk is full or fails, so that nobody has to sit beside it
    errors_page        The table of errors in docs/errors.md, written from the classes themselves
    idle_memory        Gives memory back to the system after many connections were closed
    interrupts         Commands that end cleanly when they are interrupted, within a moment
    lazy               Commands that are loaded when they are called, so that `tidelog --help` starts fast
    log/               `tidelog log`: look into, verify, export and import logs, stores, journals and `.lpj` files
    main               The `tidelog` command
    openapi_page       The OpenAPI documents in docs/openapi, written from the routes themselves
    output             What commands print
    pipeline_commands  `tidelog pipeline`
    processes          `tidelog boat` and `tidelog cloud`, also installed as `lplex-server` and `lplex-cloud`
    reach              How a command reaches a cluster, as its options say it, and how it tells of a refusal
    reach_options      The options with which a command finds a cluster
    settings/          The settings of processes: flags, environment and HOCON file
    signals_page       The signals of the pipeline in docs/signals.md, written from the layouts
    sim_commands       `tidelog sim`
"""
