"""Files of other programs: `.lpj` journals, candump and canboat captures.

Modules:

    captures   candump and canboat captures
    lpj        lplex journal files (.lpj)
    lpj_table  The device table of the block that an .lpj writer has open
"""
