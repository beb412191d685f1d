"""TLS certificates: one for each service that listens beyond loopback, pinned by all its peers.

Theory of operation. A service has one self-signed certificate with one key. Dispatcher, workers and clients all have
both, from the same place as the token (a connection file, a join file, the arguments of a launcher). Each of them
trusts this certificate and no other, and presents it: servers require it from their callers (mutual TLS). The name in
the certificate is always "dsnb" and not compared with the address, so a service may move. A pinned certificate gains
nothing from an early expiry, so it is valid for ten years; it begins one day in the past, because the clocks of two
hosts differ.

TLS hides what is sent and keeps strangers out. It does not replace the proofs of `wire/security`, which say which
server of the service answers; they are the same with and without TLS.

In files and arguments a certificate is one text: the certificate in PEM format, followed by its key.
"""

from __future__ import annotations

import hashlib
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from dsnb.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from dsnb.storage.files import write_private_file

if TYPE_CHECKING:
    import ssl

    import grpc  # imported when it is used: `dsnb.start` must not wait for it

TLS_NAME: Final = "dsnb"
CERTIFICATE_FILE: Final = "certificate.pem"
"""The certificate's file in a `work_dir`."""

_DAYS: Final = 3652
_CERTIFICATE_END: Final = "-----END CERTIFICATE-----"
_KEY_BEGIN: Final = "PRIVATE KEY-----"
_MAX_BYTES: Final = 64 << 10
_PROBE_S: Final = 0.5


def new_certificate() -> str:
    """Make a key and a self-signed certificate for one service.

    Raises:
        FailedPreconditionError: the package cryptography is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise FailedPreconditionError(
            "listening beyond loopback needs a certificate, and the package that makes one is not installed",
            did="nothing was started",
            hint="pip install 'dsnb[cluster]'; or, in a network that you trust, pass tls=False",
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, TLS_NAME)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(TLS_NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return (certificate.public_bytes(pem) + private).decode("ascii")


def check_certificate(name: str, value: Any) -> str:
    """Check an argument that must be a certificate with its key; errors never contain it.

    Raises:
        InvalidArgumentError: the value is something else.
    """
    good = isinstance(value, str) and value.isascii() and len(value) <= _MAX_BYTES
    if not good or _CERTIFICATE_END not in value or _KEY_BEGIN not in value.partition(_CERTIFICATE_END)[2]:
        raise InvalidArgumentError(
            f"`{name}` is not a certificate in PEM format, followed by its key",
            did="nothing was started",
            hint="leave it out: a service makes its own, and a join file (`svc.join_command()`) carries it",
        )
    return str(value)


def load_or_create_certificate(folder: str | os.PathLike[str]) -> str:
    """The certificate kept in a `work_dir`; makes it, with mode 0600, if there is none.

    Raises:
        FailedPreconditionError: the file holds no certificate, or the package cryptography is not installed.
    """
    path = os.path.join(folder, CERTIFICATE_FILE)
    with suppress(FileNotFoundError), open(path, encoding="ascii", errors="replace") as file:
        try:
            return check_certificate("certificate", file.read(_MAX_BYTES + 1))
        except InvalidArgumentError as error:
            raise FailedPreconditionError(
                f"the file {path!r} holds no certificate with its key",
                did="nothing was started",
                hint="restore it; or remove it, and the service makes a new one, which peers on other hosts then need",
            ) from error
    return renew_certificate(folder)


def renew_certificate(folder: str | os.PathLike[str]) -> str:
    """Replace the certificate kept in a `work_dir`; peers need a new join file.

    Raises:
        NotFoundError: the folder cannot be written.
        FailedPreconditionError: the package cryptography is not installed.
    """
    certificate = new_certificate()
    path = os.path.join(folder, CERTIFICATE_FILE)
    try:
        write_private_file(path, certificate.encode())
    except OSError as error:
        raise NotFoundError(
            f"the file {path!r} cannot be written ({error.strerror})",
            did="no certificate was changed",
            hint="check the path, and whether the disk is full",
        ) from error
    return certificate


def fingerprint(certificate: str) -> str:
    """The SHA-256 digest of a certificate, by which people and logs can compare two; the key is not part of it.

    Returns:
        32 hexadecimal pairs, the same as `openssl x509 -fingerprint -sha256` prints.
    """
    import ssl  # takes 10 ms, and is needed by few functions only

    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(_parts(certificate)[0].decode())).hexdigest().upper()
    return ":".join(digest[at : at + 2] for at in range(0, len(digest), 2))


def _parts(certificate: str) -> tuple[bytes, bytes]:
    """The certificate and its key, each in PEM format."""
    before, end, key = certificate.partition(_CERTIFICATE_END)
    return (before + end + "\n").encode(), key.lstrip().encode()


def server_credentials(certificate: str) -> grpc.ServerCredentials:
    """What a server presents; it accepts only callers that present the same certificate."""
    import grpc

    chain, key = _parts(certificate)
    return grpc.ssl_server_credentials([(key, chain)], root_certificates=chain, require_client_auth=True)


def channel_credentials(certificate: str) -> grpc.ChannelCredentials:
    """What a caller presents; it accepts only a server that presents the same certificate."""
    import grpc

    chain, key = _parts(certificate)
    return grpc.ssl_channel_credentials(chain, key, chain)


@lru_cache(maxsize=8)
def server_context(certificate: str) -> ssl.SSLContext:
    """The TLS settings of a server outside gRPC: as `server_credentials`. Speaks TLS 1.3 only."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # a connection is never resumed
    return _pin(context, certificate)


@lru_cache(maxsize=8)
def client_context(certificate: str) -> ssl.SSLContext:
    """The TLS settings of a caller outside gRPC: as `channel_credentials`. Speaks TLS 1.3 only.

    The connection must be made with the name `TLS_NAME`.
    """
    import ssl

    return _pin(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), certificate)


def _pin(context: ssl.SSLContext, certificate: str) -> ssl.SSLContext:
    import ssl

    chain, key = _parts(certificate)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=chain.decode())
    with _private_file(chain + key) as path:
        context.load_cert_chain(path)
    return context


@contextmanager
def _private_file(content: bytes) -> Iterator[str]:
    """A file that only this process can find, for a library that reads keys from files only."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("dsnb-certificate", os.MFD_CLOEXEC), "wb") as memory:
            memory.write(content)
            memory.flush()
            yield f"/proc/self/fd/{memory.fileno()}"
        return
    with tempfile.NamedTemporaryFile(prefix="dsnb-certificate-") as file:  # mode 0600
        file.write(content)
        file.flush()
        yield file.name


def pinned_peer(connection: ssl.SSLObject, context: ssl.SSLContext) -> bool:
    """Whether the peer presents the very certificate that this side accepts, and not one signed by its key."""
    return connection.getpeercert(binary_form=True) in context.get_ca_certs(binary_form=True)


def speaks_tls(address: str) -> bool:
    """Whether a server completes a TLS handshake; used to explain why a plain connection failed.

    Args:
        address: "host:port".
    """
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent and nothing is believed
    host, _, port = address.rpartition(":")
    # The handshake runs in memory: `wrap_socket` takes a connection that the server has just reset for an open one, or
    # leaves its socket open.
    received, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
    handshake = context.wrap_bio(received, to_send)
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _PROBE_S) as connection:
            while True:
                try:
                    handshake.do_handshake()
                    return True
                except ssl.SSLWantReadError:
                    connection.sendall(to_send.read())
                    data = connection.recv(1 << 16)
                    if not data:
                        return False
                    received.write(data)
    except (OSError, ValueError):  # ssl.SSLError is an OSError
        return False
