"""Identities and certificates: who a certificate names, authorities that issue them, revocation, files.

Modules:

    authority     A certificate authority in a folder
    certificates  Making certificates
    files         Small files that are whole or absent, for keys and certificates
    identity      Who a certificate says you are
    revocation    Certificates that are no longer good although their time is not over
    tls_files     Certificates and keys as files
"""
