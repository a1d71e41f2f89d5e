"""The HTML report of a run.

Modules:

    data   The data of the report
    page   `tidelog pipeline report`
    plots  The plots of the report, one function each
"""
