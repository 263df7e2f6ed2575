"""Certificates and keys of a federation: who the SuperLink is, and who may join it.

TLS tells the clients that they talk to the right SuperLink; a key per client tells the SuperLink
which client it talks to. Everything is elliptic-curve P-384: the one family that Flower's node
authentication takes (NIST curves) and that gRPC's TLS takes too.
"""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

LOOPBACK = ("localhost", "127.0.0.1")
VALIDITY = timedelta(days=365)
CLOCK_SKEW = timedelta(minutes=5)  # a device whose clock is a little late must not refuse a new certificate


@dataclass(frozen=True)
class Certificates:
    """Paths of the PEM files that a SuperLink is started with."""

    ca: Path
    """The certificate authority's certificate: all that a client needs."""
    certificate: Path
    """The SuperLink's certificate, signed by the authority."""
    key: Path
    """The SuperLink's private key (mode 0600)."""


def write_certificates(folder: Path, names: Iterable[str] = ()) -> Certificates:
    """Make a certificate authority and a SuperLink's certificate signed by it.

    The authority's own private key is not written: nobody can sign a second server with it.

    Parameters
    ----------
    folder : Path
        Where the files go; created with mode 0700.
    names : Iterable[str]
        Host names and IP addresses under which clients reach the SuperLink, besides `LOOPBACK`.

    Returns
    -------
    Certificates
        The three files, `ca.crt`, `server.pem` and `server.key`. Valid for `VALIDITY`.

    Raises
    ------
    FileExistsError
        If `folder` already holds such a key.
    """
    private_folder(folder)
    authority_key = ec.generate_private_key(ec.SECP384R1())
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Cohort CA")])
    authority = (
        _builder(authority_name, authority_name, authority_key.public_key(), authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .sign(authority_key, hashes.SHA384())
    )

    server_key = ec.generate_private_key(ec.SECP384R1())
    server_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Cohort SuperLink")])
    alternatives = [_general_name(name) for name in dict.fromkeys((*LOOPBACK, *names))]
    server = (
        _builder(server_name, authority_name, server_key.public_key(), authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .sign(authority_key, hashes.SHA384())
    )

    files = Certificates(folder / "ca.crt", folder / "server.pem", folder / "server.key")
    _write_private(files.key, _private_bytes(server_key, serialization.PrivateFormat.PKCS8))
    files.ca.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    files.certificate.write_bytes(server.public_bytes(serialization.Encoding.PEM))
    return files


def write_client_key(folder: Path, name: str) -> Path:
    """Make the key pair with which one client authenticates itself.

    Parameters
    ----------
    folder : Path
        Where the files go; created with mode 0700.
    name : str
        The client's name, which is the name of the file.

    Returns
    -------
    Path
        The private key in OpenSSH format (mode 0600), for `flower-supernode
        --auth-supernode-private-key`. The public key lies beside it under the same name with
        `.pub`, for `flwr supernode register`.

    Raises
    ------
    FileExistsError
        If the client has a key already.
    """
    private_folder(folder)
    key = ec.generate_private_key(ec.SECP384R1())
    path = folder / name
    _write_private(path, _private_bytes(key, serialization.PrivateFormat.OpenSSH))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.with_name(f"{name}.pub").write_bytes(public + b"\n")
    return path


def private_folder(folder: Path) -> None:
    """Make `folder`, which only its owner may enter (mode 0700)."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePublicKey,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + VALIDITY)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
    )


def _key_usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _private_bytes(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _write_private(path: Path, content: bytes) -> None:
    # Private from its first moment on: a chmod afterwards would leave a gap in which others could read it.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
