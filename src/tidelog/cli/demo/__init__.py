"""`tidelog demo`: boats, nodes, a link that is cut, a pipeline, and a check of every frame.

Modules:

    answers  What the demo asks of its tables, and how it knows that the answers are right
    engine   Spark for the demo
    link     The demo's link between boats and the cluster
    parties  The demo's boats and nodes
    ports    Ports for processes that one machine runs for a while
    run      `tidelog demo`
    sea      The demo at sea
    sight    How one boat of the demo and the cluster stand towards each other, looked at again and again
    story    What the demo tells
    tables   The demo ashore
"""
