"""`tidelog cluster`, `ca` and `token`: who belongs to the cluster and who may do what.

Modules:

    actions        What the commands of `tidelog cluster` do
    ca_actions     What the commands of `tidelog ca` do
    ca_commands    `tidelog ca`
    commands       `tidelog cluster`
    page           The status of a cluster as people read it
    token_command  `tidelog token`
"""
