"""Identities and certificates: who a certificate names, authorities that issue them, revocation, files.

Modules:

    authority     A certificate authority in a folder
    certificates  Making certificates
    files         Small files that are whole or absent, for keys and certificates
    identity      The holder that a certificate names
    revocation    Certificates that are revoked before they expire
    tls_files     Certificates and keys as files
"""
