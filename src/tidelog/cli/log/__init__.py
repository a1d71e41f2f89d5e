"""`tidelog log`: look into, verify, export and import logs, stores, journals and `.lpj` files.

Modules:

    commands     `tidelog log`
    dump         `tidelog log dump`
    export       `tidelog log export`
    files        Read-only access to the files of one log
    inspect      `tidelog log inspect`
    log_import   `tidelog log import`
    lpj_copy     Writing lplex blocks back to an .lpj file exactly as they came
    lpj_devices  Device tables for an .lpj file that is written anew
    seq_order    The frames of a log in the order of their seqs, whatever the order in which they arrived
    sources      What a path is, and how to read it without changing it
    store_files  Read-only access to a store
    verify       `tidelog log verify`
"""
