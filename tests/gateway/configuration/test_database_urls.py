"""URLs of databases: from variables, keys and files; what is wrong with one is said without any part of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.errors import StoreError
from audit.storage.dsn import database_of
from gateway.configuration.database_urls import urls_of
from gateway.configuration.settings import Database, SettingsError, load_settings

SECRET = "s3cr3t-canary"


@pytest.mark.parametrize(
    ("url", "host", "database"),
    [
        ("postgresql://u:p@h/d", "h:5432", "d"),
        ("postgres://h", "h:5432", "postgres"),
        ("postgresql://u@H:6000/d?sslmode=verify-full", "h:6000", "d"),
        ("postgresql://u:p@[::1]:5433/d", "[::1]:5433", "d"),
        ("postgresql://u:a%40b@h1:1,h2/d", "h1:1,h2:5432", "d"),
        ("postgresql://u:@/d?host=/run/postgresql", "/run/postgresql:5432", "d"),
        ("postgresql+psycopg://u:p@h/d%20e", "h:5432", "d e"),
        ("postgresql://u:p@/?host=h&dbname=x&port=7", "h:7", "x"),
    ],
)
def test_a_url_names_a_server_and_a_database(url, host, database):
    found = database_of(url, "X")
    assert (found.host, found.database) == (host, database)


@pytest.mark.parametrize(
    "url",
    [
        "", "x", "mysql://h/d", "postgresql:/h", "postgresql://u:PW@h:1x/x", "postgresql://u:PW@[::1/x",
        "postgresql://u:PW@h:0/x", "postgresql://u:PW@h:65536/x", "postgresql://u:PW@h :1/x", "postgresql://u:PW@h\n/x",
        "postgresql://u:PW@h:\u0661/x", "host=h password=PW", "postgresql://u:PW@h:1:2/x",
    ],
)  # fmt: skip
def test_what_is_no_url_is_named_by_its_source_and_not_repeated(url):
    with pytest.raises(StoreError, match=r"^DATABASE_URL (is not|names no)") as raised:
        database_of(url, "DATABASE_URL")
    assert "PW" not in str(raised.value)


@given(st.text(max_size=60))
def test_any_text_is_a_url_or_a_sentence_that_does_not_hold_it(text):
    url = f"postgresql://u:{SECRET}@{text}"
    try:
        database_of(url, "X")
    except StoreError as error:
        assert SECRET not in str(error)


def test_the_environment_goes_before_files_and_files_hold_the_password(tmp_path):
    (tmp_path / "password").write_text("p@ss:/word\n")
    (tmp_path / "url").write_text("postgresql://u:p@h/record\n")
    settings = Database(
        url="postgresql://domicile@h/control", password_file=tmp_path / "password", record_url_file=tmp_path / "url"
    )
    urls = urls_of(settings, {})
    assert urls.control == "postgresql://domicile:p%40ss%3A%2Fword@h/control"
    assert urls.record == "postgresql://u:p@h/record"
    assert SECRET not in repr(urls_of(settings, {"DOMICILE_DATABASE_URL": f"postgresql://u:{SECRET}@h/d"}))
    assert urls_of(settings, {"DOMICILE_DATABASE_URL": "postgresql://x/y"}).control == "postgresql://x/y"
    assert urls_of(Database(), {}).control is None


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff", b"a\nb", b"x" * 70_000])
def test_a_file_that_holds_no_line_is_named(tmp_path, content):
    if content is not None:
        (tmp_path / "file").write_bytes(content)
    with pytest.raises(SettingsError, match=r"database\.url_file: .*(cannot be read|one line)"):
        urls_of(Database(url_file=tmp_path / "file"), {})


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("url", f"postgresql://u:{SECRET}@h/d", "the URL holds a password; name the file"),
        ("record_url", f"postgresql://h/d?password={SECRET}", "the URL holds a password"),
        ("url", f"mysql://u:{SECRET}@h/d", "is not the URL of a database"),
        ("url", f"postgresql://u:{SECRET}@h:1x/d", "names no valid host and port"),
    ],
)
def test_a_url_in_the_configuration_with_a_password_or_a_fault_is_refused_without_it(tmp_path, key, value, says):
    (tmp_path / "c.yaml").write_text(f"database: {{{key}: '{value}'}}\n")
    with pytest.raises(SettingsError, match=says) as raised:
        load_settings(tmp_path / "c.yaml")
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    "url", [f"redis://:{SECRET}@[::1/0", f"redis://:{SECRET}@h:1x/0", "http://h", "redis://h:99999"]
)
def test_a_redis_url_that_is_none_is_named_and_not_repeated(url):
    with pytest.raises(SettingsError, match="DOMICILE_REDIS_URL is not the URL of a Redis; write redis://") as raised:
        urls_of(Database(), {"DOMICILE_REDIS_URL": url})
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("environment", "here"),
    [
        ({}, True),
        ({"DOMICILE_DATABASE_URL": "postgresql://localhost/d"}, True),
        ({"DOMICILE_DATABASE_URL": "postgresql:///d?host=/run/pg"}, True),
        ({"DOMICILE_DATABASE_URL": "postgresql://127.0.0.1,db.example/d"}, False),
        ({"DOMICILE_AUDIT_DATABASE_URL": "postgresql://db.example/d"}, False),
        ({"DOMICILE_REDIS_URL": "redis://cache.example"}, False),
        ({"DOMICILE_REDIS_URL": "redis://127.0.0.1"}, True),
    ],
)
def test_a_store_on_another_host_is_noticed(environment, here):
    assert urls_of(Database(), environment).all_here is here
