"""Sets up trust in TLS certificates, and checks by a local handshake for which names a certificate is valid."""

from __future__ import annotations

import os
import ssl
from contextlib import suppress
from pathlib import Path

from millpond.errors import CertificateError, SetupError

_ROUNDS = 8
"""More bytes than a handshake has."""

_NAMES_DIFFER = (62, 64)
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""


def trusted_context(certificate: str | os.PathLike[str] | None) -> ssl.SSLContext:
    """A client context that trusts the certificates of a PEM file, regardless of their issuer, and the system's.

    Raises:
        SetupError: the file contains no certificate.
    """
    context = ssl.create_default_context()
    if certificate is not None:
        try:
            context.load_verify_locations(certificate)
        except (OSError, ssl.SSLError) as error:
            raise SetupError(f"{certificate} is no certificate: {error}.", "Name a file of PEM with --ca.") from error
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the file may lack the signer's certificate
    return context


def untrusting_context() -> ssl.SSLContext:
    """A client context that trusts no certificate, for addresses without TLS: to load the system's takes 30 ms of CPU.
    """
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def is_valid_for(certificate: Path, key: Path, name: str) -> bool:
    """Whether a client that trusts this certificate accepts it for `name`; False if it cannot be loaded."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        serving.load_cert_chain(certificate, key, password="")
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        server = serving.wrap_bio(to_server, to_client, server_side=True)
        client = trusted_context(certificate).wrap_bio(to_client, to_server, server_hostname=name)
        for _ in range(_ROUNDS):
            with suppress(ssl.SSLWantReadError):
                client.do_handshake()
                return True
            with suppress(ssl.SSLWantReadError):
                server.do_handshake()
    except (OSError, ValueError, SetupError):  # TLS errors are OSErrors
        return False
    return False


def certificate_error(error: BaseException, url: str) -> CertificateError | None:
    """A `CertificateError` if the error, or one of its causes, is that a certificate was rejected; otherwise None."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, ssl.SSLCertVerificationError):
        found = found.__cause__ or found.__context__
    if found is None:
        return None
    why = found.verify_message.rstrip(".")
    if found.verify_code in _NAMES_DIFFER:
        return CertificateError(
            f"The certificate at {url} is for another name: {why}.",
            "Use a name of the certificate, --url https://NAME:PORT. With `millpond serve --allow-host NAME`, commands "
            "on the service's machine use it by themselves.",
        )
    return CertificateError(
        f"The certificate at {url} is not trusted here: {why}.",
        "Give it, or its issuer's certificate, with --ca FILE.pem; if it has expired, renew it.",
    )
