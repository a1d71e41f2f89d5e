"""Benchmarks of files: blocks, logs, recovery and the journal of a boat.

Modules:

    append_bench    How fast blocks become durable
    block_bench     Frames to blocks and back
    journal_bench   `tidelog bench journal`
    journal_boat    The process that `journal_bench` measures
    log_bench       `tidelog bench log`
    recovery_bench  Opening logs
    size_bench      The size of a journal on disk against `.lpj` files of the same frames, on real captures
"""
