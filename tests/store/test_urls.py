from __future__ import annotations

import pytest

from perdure.store.url import shown


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("postgresql://me:s3cret@host/shop", "postgresql://me:***@host/shop"),
        ("postgresql://me:s3@cret@host/shop", "postgresql://me:***@host/shop"),
        ("postgresql://:s3cret@one:1,two:2/shop", "postgresql://:***@one:1,two:2/shop"),
        (
            "postgresql://host/shop?user=me&password=s3cret&schema=a",
            "postgresql://host/shop?user=me&password=***&schema=a",
        ),
        ("postgresql://me@host/shop?sslpassword=s3cret", "postgresql://me@host/shop?sslpassword=***"),
        ("sqlite:///shop.db?prefix=a_", "sqlite:///shop.db?prefix=a_"),
    ],
)
def test_a_url_is_shown_without_its_passwords(url: str, seen: str) -> None:
    assert shown(url) == seen
