"""The HTML report of a run.

Modules:

    data   What the report is made of
    page   `tidelog pipeline report`
    plots  The plots of the report, one function each
"""
