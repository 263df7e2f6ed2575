"""Makes the secret of a Ray cluster that starts on this machine."""

import secrets

MODE, TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"


def ray_token() -> dict[str, str]:
    """Return environment variables for the processes of a new cluster.

    The cluster then serves only processes that have these variables.

    By default, Ray 2.55 listens on all addresses of the machine and demands no secret: whoever reaches its
    ports can run programs as the user who started Ray.
    """
    return {MODE: "token", TOKEN: secrets.token_hex(32)}
