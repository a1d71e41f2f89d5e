"""Files of other programs: `.lpj` journals, and captures of many kinds.

Modules:

    binary_captures  pcap and Actisense .ebl captures
    capture_kinds    All kinds of captures
    captures         Captures of other programs
    lpj              lplex journal files (.lpj)
    lpj_table        The device table of the block that an .lpj writer has open
    text_captures    Text logs of gateways and analysers
"""
