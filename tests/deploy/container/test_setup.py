"""Certificates, keys and the executors' secret are made once."""

import stat

from deploy.container.setup import prepare, write_secret
from deploy.tls import certificates


def read(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_certificates_and_keys_are_made_once_and_public_files_lie_apart(tmp_path):
    public, server, keys = (tmp_path / each for each in ("public", "server", "keys"))
    public.mkdir()
    prepare(public, server, keys, ["superlink"], 2)
    before = read(server) | read(keys) | read(public)
    assert set(read(public)) == {"ca.crt", "client-00.pub", "client-01.pub"}
    assert not any(b"PRIVATE" in content for content in read(public).values())
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (server, keys)] == [0o700, 0o700]

    prepare(public, server, keys, ["superlink"], 3)  # more clients
    after = read(server) | read(keys) | read(public)
    assert {name: after[name] for name in before} == before
    assert after.keys() - before.keys() == {"client-02", "client-02.pub"}

    prepare(public, server, keys, ["superlink", "box.example.org"], 3)  # another name
    assert certificates.is_valid_for(
        server / "server.pem", ["superlink", "box.example.org"], certificates.RENEWAL
    )
    assert read(public)["ca.crt"] == before["ca.crt"]  # devices know it
    assert read(keys) == {name: after[name] for name in read(keys)}

    (server / "server.pem").unlink()  # setup was killed before it wrote it
    prepare(public, server, keys, ["superlink"], 3)
    assert certificates.is_valid_for(server / "server.pem", ["superlink"], certificates.RENEWAL)
    assert read(public)["ca.crt"] == read(server)["ca.crt"] != before["ca.crt"]


def test_the_executors_secret_is_made_once_and_is_private(tmp_path):
    write_secret(tmp_path / "private" / "secret", 32 * b"1")
    secret = (tmp_path / "private" / "secret").read_bytes()
    write_secret(tmp_path / "private" / "secret", 32 * b"2")
    assert (tmp_path / "private" / "secret").read_bytes() == secret
    assert secret == 32 * b"1"
    assert stat.S_IMODE((tmp_path / "private" / "secret").stat().st_mode) == 0o600
