"""Makes certificates for a SuperLink and keys for clients.

Clients verify the SuperLink by its TLS certificate. The SuperLink identifies each client by its key. The keys
of clients use the elliptic curve P-256, those of authorities and SuperLinks P-384.
"""

import ipaddress
import os
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LOOPBACK = ("localhost", "127.0.0.1")
VALIDITY = timedelta(days=365)  # of a SuperLink's certificate
RENEWAL = timedelta(days=30)  # each start of the server renews a certificate that expires within this time
AUTHORITY_VALIDITY = timedelta(days=3650)  # of the certificate of an authority whose key is kept
AUTHORITY_KEY = "ca.key"  # the name of the file with the authority's key
_AUTHORITY_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Cohort CA")])
CLOCK_SKEW = timedelta(days=1)  # a new certificate is valid for peers whose clock is slow by this much


@dataclass(frozen=True)
class Certificates:
    """The paths of the PEM files with which a SuperLink serves over TLS."""

    ca: Path
    """The authority's certificate, with which clients verify the SuperLink."""
    certificate: Path
    """The SuperLink's certificate, signed by the authority."""
    key: Path
    """The SuperLink's private key (mode 0600)."""


def write_certificates(folder: Path, names: Iterable[str] = (), *, renewable: bool = False) -> Certificates:
    """Make a certificate authority, and a certificate of a SuperLink that the authority has signed.

    Unless `renewable` is set, the authority's private key is not written, so that it can never sign the
    certificate of another server.

    `folder`: the folder for the files. It is made if it is missing, and gets mode 0700. `names`: host names
    and IP addresses under which clients reach the SuperLink, besides `LOOPBACK`. `renewable`: whether to keep
    the authority's key in the file `AUTHORITY_KEY`, for `renew_certificate`. The authority's certificate is
    then valid for `AUTHORITY_VALIDITY`, else for `VALIDITY`.

    Returns the paths of the files `ca.crt`, `server.pem` and `server.key` in the folder. The SuperLink's
    certificate is valid for `VALIDITY`.
    """
    private_folder(folder)
    authority_key = ec.generate_private_key(ec.SECP384R1())
    public_key = authority_key.public_key()
    validity = AUTHORITY_VALIDITY if renewable else VALIDITY
    authority = (
        _builder(_AUTHORITY_NAME, _AUTHORITY_NAME, public_key, public_key, validity)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage("key_cert_sign", "crl_sign"), critical=True)
        .sign(authority_key, hashes.SHA384())
    )
    files = Certificates(folder / "ca.crt", folder / "server.pem", folder / "server.key")
    key, certificate = _sign_server(authority_key, names)
    made: list[Path] = []
    try:
        write_private(files.key, key)
        made.append(files.key)
        if renewable:
            kept = _private_bytes(authority_key, serialization.PrivateFormat.PKCS8)
            write_private(folder / AUTHORITY_KEY, kept)
            made.append(folder / AUTHORITY_KEY)
        made += files.ca, files.certificate
        for path, content in (
            (files.ca, authority.public_bytes(serialization.Encoding.PEM)),
            (files.certificate, certificate),
        ):
            made.append(new := path.with_name(f"{path.name}.new"))
            with new.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)  # even after a power failure, the next start must find no empty file
    except OSError:  # such as a full disk. If files were left, the next call would fail.
        for each in made:
            each.unlink(missing_ok=True)
        raise
    return files


def renew_certificate(folder: Path, names: Iterable[str] = (), into: Path | None = None) -> None:
    """Replace a SuperLink's key and certificate by a new key and a certificate of the same authority.

    Clients accept the new certificate as they accepted the old one. A running SuperLink uses the old
    certificate until it is restarted.

    `folder`: a folder that `write_certificates` has written with `renewable` set. `names`: host names and IP
    addresses under which clients reach the SuperLink, besides `LOOPBACK`. `into`: the folder that receives
    the key and the certificate, for another server of the same authority. (default: `folder`)
    """
    authority_key = serialization.load_pem_private_key((folder / AUTHORITY_KEY).read_bytes(), None)
    if not isinstance(authority_key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{folder / AUTHORITY_KEY}: must be a key that write_certificates wrote")
    key, certificate = _sign_server(authority_key, names)
    for name, content in (("server.key", key), ("server.pem", certificate)):
        new = (into or folder) / f"{name}.new"
        new.unlink(missing_ok=True)  # left by an interrupted renewal
        write_private(new, content)
        new.replace(new.with_suffix(""))


def _sign_server(authority_key: ec.EllipticCurvePrivateKey, names: Iterable[str]) -> tuple[bytes, bytes]:
    """Return a new private key for a SuperLink, and the certificate for this key, in PEM format."""
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Cohort SuperLink")])
    alternatives = [_general_name(name) for name in dict.fromkeys((*LOOPBACK, *names))]
    certificate = (
        _builder(subject, _AUTHORITY_NAME, key.public_key(), authority_key.public_key(), VALIDITY)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    return (
        _private_bytes(key, serialization.PrivateFormat.PKCS8),
        certificate.public_bytes(serialization.Encoding.PEM),
    )


def write_client_key(folder: Path, name: str) -> Path:
    """Make the key pair with which a client authenticates itself.

    `folder`: the folder for the files. It is made if it is missing, and gets mode 0700. `name`: the client's
    name, which is also the name of the private key's file.

    Returns the path of the private key in OpenSSH format (mode 0600), for the option
    `--auth-supernode-private-key` of `flower-supernode`. The public key is written beside it into the file
    NAME.pub, for `flwr supernode register`.
    """
    # The SuperLink verifies a signature for each request. With P-384, it would need a tenth more CPU time.
    key = ec.generate_private_key(ec.SECP256R1())
    form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    public = key.public_key().public_bytes(*form).decode()
    private_folder(folder)
    write_private(folder / name, _private_bytes(key, serialization.PrivateFormat.OpenSSH))
    (folder / f"{name}.pub").write_text(f"{public}\n")
    return folder / name


def is_valid_for(certificate: Path, names: Iterable[str], at_least: timedelta) -> bool:
    """Tell whether a SuperLink's certificate holds all these names and stays valid for a given time.

    `names`: the host names and IP addresses that the certificate must hold, besides `LOOPBACK`. `at_least`:
    the time from now for which the certificate must stay valid.
    """
    held = x509.load_pem_x509_certificate(certificate.read_bytes())
    alternatives = held.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return datetime.now(UTC) + at_least <= held.not_valid_after_utc and all(
        _general_name(name) in alternatives for name in (*LOOPBACK, *names)
    )


def private_folder(folder: Path) -> None:
    """Make a folder if it is missing, and set its mode to 0700."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)


def foreign_owner(folder: Path) -> str:
    """Return why a folder must not hold secrets: it belongs to another user, who could replace them.

    The result is "" if the folder belongs to the user of this process, or is missing.
    """
    if sys.platform == "win32" or not folder.exists():
        return ""
    owner, user = folder.stat().st_uid, os.geteuid()
    if owner == user:
        return ""
    return (
        f"belongs to {_user_name(owner)}, who could replace the keys in it: run this as {_user_name(owner)}, "
        f"name another folder, or first: chown -R {_user_name(user)} {shlex.quote(str(folder))}"
    )


def _user_name(user: int) -> str:
    """Return the name of a user of this machine; the number if there is no name."""
    import pwd  # not at the top: Windows lacks it

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePublicKey,
    validity: timedelta,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + validity)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
    )


def _key_usage(*uses: str) -> x509.KeyUsage:
    kinds = (
        *("digital_signature", "key_cert_sign", "crl_sign", "content_commitment", "key_encipherment"),
        *("data_encipherment", "key_agreement", "encipher_only", "decipher_only"),
    )
    return x509.KeyUsage(**{kind: kind in uses for kind in kinds})


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _private_bytes(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def write_private(path: Path, content: bytes) -> None:
    """Write a new file with mode 0600, or no file if it cannot be written as a whole."""
    # The file has mode 0600 from its creation, so others can never read it.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)  # the caller may delete the original file next
    except BaseException:
        path.unlink()  # an empty file would be taken for a secret or a key
        raise


def keep_private(path: Path, content: bytes) -> None:
    """Write a private file unless it holds something: an empty one is left by a power failure."""
    if not path.exists() or not path.stat().st_size:
        path.unlink(missing_ok=True)
        write_private(path, content)
