from __future__ import annotations

import pytest

from perdure.errors import UsageError
from perdure.store.url import is_in_memory, parse, shown


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


@pytest.mark.parametrize("url", ["mysql://me@one,two/shop", "mariadb://me:s3cret@one:3306,two:3307/shop"])
def test_several_hosts_of_a_mysql_url_are_refused_with_what_to_do(url: str) -> None:
    with pytest.raises(UsageError, match=r"names several hosts.*name one, or a proxy") as refused:
        parse(url)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "in_memory"),
    [
        ("sqlite://", True),
        ("sqlite:///app.db", False),
        ("postgresql://db/app", False),
        ("mysql://user@db/app", False),
    ],
)
def test_only_sqlite_without_a_file_is_in_memory(url: str, in_memory: bool) -> None:
    assert is_in_memory(url) is in_memory
