"""Other people's files: `.lpj` journals, candump and canboat captures.

Modules:

    captures   Captures that people already have
    lpj        lplex journal files (.lpj)
    lpj_table  The device table of the block that an .lpj writer has open
"""
