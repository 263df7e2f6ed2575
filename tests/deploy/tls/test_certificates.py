"""Certificates pass the verification of TLS libraries; keys are private and in Flower's format."""

import stat
from datetime import UTC, datetime, timedelta
from errno import ENOSPC
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from deploy.tls import certificates

from ...support.disks import full


def verifier_for(ca, name, at=None):
    pass
    try:
        subject = x509.IPAddress(ip_address(name))
    except ValueError:
        subject = x509.DNSName(name)
    builder = PolicyBuilder().store(Store([x509.load_pem_x509_certificate(ca.read_bytes())]))
    return builder.time(at or datetime.now(UTC)).build_server_verifier(subject)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return certificates.write_certificates(tmp_path_factory.mktemp("pki"), ["superlink", "10.1.2.3"])


@pytest.fixture
def server(files):
    return x509.load_pem_x509_certificate(files.certificate.read_bytes())


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "superlink", "10.1.2.3"])
def test_the_server_is_trusted_under_its_names(files, server, name):
    assert len(verifier_for(files.ca, name).verify(server, [])) == 2


def test_the_server_is_not_trusted_under_another_name_or_authority_or_after_a_year(files, server, tmp_path):
    stranger = certificates.write_certificates(tmp_path)
    for verifier in (
        verifier_for(files.ca, "example.org"),
        verifier_for(files.ca, "127.0.0.2"),
        verifier_for(stranger.ca, "localhost"),
        verifier_for(files.ca, "localhost", datetime.now(UTC) + timedelta(days=366)),
    ):
        with pytest.raises(VerificationError):
            verifier.verify(server, [])


def test_the_server_key_belongs_to_the_certificate_and_cannot_sign_others(files, server):
    key = load_pem_private_key(files.key.read_bytes(), None)
    assert key.public_key() == server.public_key()
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not server.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign


def test_a_client_key_is_a_pair_of_a_nist_curve_in_openssh_format(tmp_path):
    path = certificates.write_client_key(tmp_path / "keys", "client-00")
    private = load_ssh_private_key(path.read_bytes(), None)
    public = load_ssh_public_key((tmp_path / "keys" / "client-00.pub").read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert isinstance(private.curve, ec.SECP256R1)
    assert private.public_key() == public


def test_secrets_are_readable_by_their_owner_only(tmp_path):
    folder = tmp_path / "pki"
    folder.mkdir(mode=0o755)
    files = certificates.write_certificates(folder)
    key = certificates.write_client_key(folder, "client-00")
    assert (mode(folder), mode(files.key), mode(key)) == (0o700, 0o600, 0o600)


def test_a_key_is_never_overwritten(tmp_path):
    before = certificates.write_client_key(tmp_path, "client-00").read_bytes()
    with pytest.raises(FileExistsError):
        certificates.write_client_key(tmp_path, "client-00")
    assert (tmp_path / "client-00").read_bytes() == before


def test_certificates_that_cannot_be_written_are_made_by_the_next_call(tmp_path, monkeypatch):
    """The disk is full after the private keys, which are never overwritten."""

    def fail(path, mode):
        path.touch()
        raise OSError(ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", fail)
        with pytest.raises(OSError, match="No space left"):
            certificates.write_certificates(tmp_path, renewable=True)
    assert not list(tmp_path.iterdir())
    assert certificates.write_certificates(tmp_path, renewable=True).certificate.exists()


def test_a_secret_that_cannot_be_written_leaves_no_empty_file(tmp_path):
    with full(), pytest.raises(OSError):  # noqa: PT011 (the system's message for a full disk differs)
        certificates.write_private(tmp_path / "secret", b"1234")
    assert not list(tmp_path.iterdir())
    certificates.write_private(tmp_path / "secret", b"1234")
    assert (tmp_path / "secret").read_bytes() == b"1234"


def test_a_certificate_is_valid_for_its_names_and_long_enough(tmp_path):
    certificate = certificates.write_certificates(tmp_path, ["superlink"]).certificate
    assert certificates.is_valid_for(certificate, ["superlink", "localhost"], certificates.RENEWAL)
    assert not certificates.is_valid_for(certificate, ["superlink"], certificates.VALIDITY)
    assert not certificates.is_valid_for(certificate, ["other"], certificates.RENEWAL)
