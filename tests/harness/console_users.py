"""Users of a console, and how they log in."""

import base64

from timers.console import access
from timers.console.access import ScryptHash, hash_token

SALT = b"0123456789abcdef"
QUICK = ScryptHash(10, 8, 1, SALT, access._scrypt("right", SALT, 10, 8, 1))
"""A hash that is checked in a millisecond."""

USERS = f"""
[[user]]
name = "ada"
role = "operator"
password = "{QUICK}"
values = true
token_sha256 = "{hash_token("token-of-ada")}"

[[user]]
name = "rob"
token_sha256 = "{hash_token("token-of-rob")}"

[[user]]
name = "tenant"
role = "operator"
topics = ["tenant-*"]
ids = ["tenant/*"]
token_sha256 = "{hash_token("token-of-tenant")}"
"""


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer token-of-{name}"}


def basic(name: str, password: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"}
