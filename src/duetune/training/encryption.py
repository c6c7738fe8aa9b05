"""TLS for the connections of a job, where ``DUETUNE_TLS`` asks for it.

Every door makes a certificate of its own when it opens and signs it itself. Nobody checks that
signature. Instead both sides put the certificate's SHA-256 into the proofs of the job's secret
(``authentication``; RFC 5929 calls it ``tls-server-end-point``). A stranger in the middle has
another certificate, so its proofs are wrong. TLS 1.3 only; sessions are never resumed.
"""

from __future__ import annotations

import hashlib
import ssl
import tempfile
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from duetune.core.node_contract import TLS
from duetune.errors import InvalidInput

if TYPE_CHECKING:
    import socket

_NAME = "duetune"
# Nobody checks the dates either, so a node's clock may be wrong.
_FROM, _UNTIL = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)


class DoorCertificate:
    """The key and certificate of one door. Both are new and end with the process."""

    def __init__(self) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._context.num_tickets = 0
        document, content = _self_signed()
        # The library reads keys from files only. This one is the owner's alone and is gone at once.
        with tempfile.NamedTemporaryFile(prefix="duetune-") as file:
            file.write(document)
            file.flush()
            self._context.load_cert_chain(file.name)
        self._digest = hashlib.sha256(content).digest()

    def around(self, connection: socket.socket) -> ssl.SSLSocket:
        """Return the accepted connection as one that will be encrypted; nothing is sent yet."""
        return self._context.wrap_socket(
            connection, server_side=True, do_handshake_on_connect=False
        )

    def shown(self, connection: socket.socket) -> bytes:
        """Do the handshake of a connection from ``around`` and return the certificate's digest."""
        if isinstance(connection, ssl.SSLSocket):
            connection.do_handshake()
        return self._digest


def dialled(connection: socket.socket) -> tuple[ssl.SSLSocket, bytes]:
    """Return the connection to a door, encrypted, and the digest of the certificate it showed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # The proofs cover it; see above.
    encrypted = context.wrap_socket(connection)
    content = encrypted.getpeercert(binary_form=True)
    return encrypted, hashlib.sha256(content or b"").digest()


def _self_signed() -> tuple[bytes, bytes]:
    """Return a new key with its certificate as PEM, and the certificate's bytes."""
    try:
        from cryptography import x509  # noqa: PLC0415
        from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
    except ImportError:
        raise InvalidInput(TLS, "1", "0, or first: pip install 'duetune[tls]'") from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    content = certificate.public_bytes(serialization.Encoding.DER)
    return secret + certificate.public_bytes(pem), content
