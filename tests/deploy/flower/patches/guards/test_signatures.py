"""A signature that the front door has just verified is not verified again; every other one is."""

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.supercore.primitives import asymmetric

from deploy.flower.patches.guards.request_checks import _Signatures


def test_only_the_same_signature_is_not_verified_again(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = ec.generate_private_key(ec.SECP256R1())
    key, other = (
        asymmetric.public_key_to_bytes(each.public_key())
        for each in (owner, ec.generate_private_key(ec.SECP256R1()))
    )
    signature = asymmetric.sign_message(owner, b"now")
    verified = []
    verify = asymmetric.verify_signature

    def noted(*request: object) -> bool:
        verified.append(request)
        return verify(*request)  # type: ignore[arg-type]

    monkeypatch.setattr(asymmetric, "verify_signature", noted)
    signatures = _Signatures()
    assert signatures.verify(key, b"now", signature)
    assert signatures.verify_again(key, b"now", signature)
    assert len(verified) == 1
    assert signatures.verify_again(key, b"now", signature)  # another request must be verified
    assert len(verified) == 2
    for wrong in ((other, b"now", signature), (key, b"then", signature), (key, b"now", signature[:-1])):
        assert signatures.verify(key, b"now", signature)
        assert not signatures.verify_again(*wrong)
        assert not signatures.verify_again(*wrong)
