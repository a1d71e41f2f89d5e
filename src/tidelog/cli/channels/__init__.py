"""`tidelog channel`, `pub`, `sub`, `group` and `producer`: what an operator or a script does with channels.

Modules:

    actions            What the commands of `tidelog channel` do
    commands           `tidelog channel`
    group_commands     `tidelog group` and `tidelog cursor`
    producer_commands  `tidelog producer`
    pub_sub            `tidelog pub` and `tidelog sub`
    standing           Whether a channel takes writes, and if not, what to do about it
"""
