"""Certificates, keys and authorities are read again when their files change, by servers and by clients."""

import asyncio
import errno
import ssl
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme

from tests.harness.waiting import wait_until
from timers.console.web.server import tls_context
from timers.kafka import admin_client
from timers.kafka.admin_client import RenewedAdmin
from timers.kafka.clients import asking_admin
from timers.kafka.connection import ssl_context
from timers.process import renewed_tls
from timers.process.config.settings import Settings


def write(directory: Path, authority: trustme.CA) -> int:
    """Write a new certificate of localhost, its key and its authority; returns the certificate's number."""
    made = authority.issue_cert("localhost")
    (directory / "cert.pem").write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
    (directory / "key.pem").write_bytes(made.private_key_pem.bytes())
    (directory / "ca.pem").write_bytes(authority.cert_pem.bytes())
    return number_of(ssl.PEM_cert_to_DER_cert(made.cert_chain_pems[0].bytes().decode()))


def number_of(der: bytes) -> int:
    from cryptography import x509

    return x509.load_der_x509_certificate(der).serial_number


@asynccontextmanager
async def serving(context: ssl.SSLContext) -> AsyncIterator[int]:
    """The port of a server with this context."""

    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def certificate(port: int, context: ssl.SSLContext) -> int:
    """Connect; return the number of the server's certificate."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
    connection: Any = writer.get_extra_info("ssl_object")
    writer.close()
    return number_of(connection.getpeercert(binary_form=True))


async def test_a_running_server_takes_a_new_certificate_and_keeps_the_former_one_if_it_is_wrong(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = trustme.CA()
    first = write(tmp_path, authority)
    names = {"TIMERS_CONSOLE_CERT_FILE": "cert.pem", "TIMERS_CONSOLE_KEY_FILE": "key.pem"}
    context = tls_context(Settings.load({name: str(tmp_path / file) for name, file in names.items()}))
    assert context is not None
    client = ssl.create_default_context()
    authority.configure_trust(client)
    async with serving(context) as port:
        assert await certificate(port, client) == first
        second = write(tmp_path, authority)
        assert await certificate(port, client) == second
        third_key = authority.issue_cert("localhost").private_key_pem.bytes()
        (tmp_path / "key.pem").write_bytes(third_key)  # the certificate of this key is not written yet
        assert await certificate(port, client) == second
        (tmp_path / "cert.pem").write_text("no certificate")
        assert await certificate(port, client) == second
        assert await certificate(port, client) == second
        assert caplog.text.count("the certificates stay as they were") == 2
        third = write(tmp_path, authority)
        assert await certificate(port, client) == third


def test_certificates_that_cannot_be_read_for_a_moment_are_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A process without a free file can still see that they have changed. The next renewal may be months away."""
    (tmp_path / "ca.pem").write_text("1")
    fails, read, now_s = False, list[str](), 100.0

    def load(context: ssl.SSLContext) -> None:
        if fails:
            raise OSError(errno.EMFILE, "Too many open files")
        read.append((tmp_path / "ca.pem").read_text())

    def connect() -> None:
        context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_side=True)

    monkeypatch.setattr(renewed_tls, "monotonic", lambda: now_s)
    context = renewed_tls.RenewedContext.reading(ssl.PROTOCOL_TLS_SERVER, [tmp_path / "ca.pem"], load)
    fails = True
    (tmp_path / "ca.pem").write_text("22")
    connect()
    now_s += renewed_tls.AGAIN_S
    connect()
    fails = False
    connect()
    assert read == ["1"] and caplog.text.count("the certificates stay as they were") == 1
    now_s += renewed_tls.AGAIN_S
    connect()
    connect()
    assert read == ["1", "22", "22"], "once to try them, once to take them"


async def test_a_running_client_trusts_a_new_authority_and_sends_a_new_certificate(tmp_path: Path) -> None:
    former, new = trustme.CA(), trustme.CA()
    write(tmp_path, former)
    given = {"TIMERS_SSL_CA_FILE": "ca.pem", "TIMERS_SSL_CERT_FILE": "cert.pem", "TIMERS_SSL_KEY_FILE": "key.pem"}
    settings = Settings.load(
        {"TIMERS_SECURITY_PROTOCOL": "SSL", **{name: str(tmp_path / file) for name, file in given.items()}}
    )
    client = ssl_context(settings)
    assert client.verify_mode is ssl.CERT_REQUIRED and client.check_hostname
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made = new.issue_cert("localhost")
    made.configure_cert(server)
    new.configure_trust(server)
    server.verify_mode = ssl.CERT_REQUIRED  # the client must have a certificate of the new authority, too
    async with serving(server) as port:
        with pytest.raises(ssl.SSLCertVerificationError):
            await certificate(port, client)
        write(tmp_path, new)
        assert await certificate(port, client) == number_of(
            ssl.PEM_cert_to_DER_cert(made.cert_chain_pems[0].bytes().decode())
        )


def test_an_admin_client_of_a_worker_is_made_anew_with_new_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka reads its files once. The former client is kept for a while: its requests may wait for answers."""
    caplog.set_level("INFO")
    write(tmp_path, trustme.CA())
    given = {"TIMERS_SSL_CA_FILE": "ca.pem", "TIMERS_SSL_CERT_FILE": "cert.pem", "TIMERS_SSL_KEY_FILE": "key.pem"}
    settings = Settings.load(
        {
            "TIMERS_BROKERS": "127.0.0.1:1",
            "TIMERS_SECURITY_PROTOCOL": "SSL",
            **{name: str(tmp_path / file) for name, file in given.items()},
        }
    )
    now_s = 100.0
    monkeypatch.setattr(admin_client, "monotonic", lambda: now_s)
    admin: Any = asking_admin(settings)

    def client() -> Any:
        return admin.poll.__self__

    first = client()
    assert client() is first
    (tmp_path / "key.pem").write_bytes(trustme.CA().issue_cert("localhost").private_key_pem.bytes())
    assert [client(), client()] == [first, first]
    assert caplog.text.count("is kept as it was") == 1, "the certificate of the key is not there yet"
    (tmp_path / "ca.pem").unlink()
    assert client() is first
    write(tmp_path, trustme.CA())
    second, kept = client(), weakref.ref(first)
    assert second is not first and client() is second
    assert caplog.text.count("has read certificates again") == 1
    del first
    assert kept() is not None
    now_s += 61
    assert client() is second
    wait_until(lambda: kept() is None, "a thread of its own has closed it")


def test_an_admin_client_that_could_not_be_made_for_a_moment_is_made_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, made = tmp_path / "ca.pem", list[Any]()
    file.write_text("1")

    def make() -> Any:
        made.append(SimpleNamespace(poll=partial(int, len(made))))
        if len(made) == 2:
            raise RuntimeError("can't start new thread")
        return made[-1]

    now_s = 100.0
    monkeypatch.setattr(renewed_tls, "monotonic", lambda: now_s)
    admin: Any = RenewedAdmin(make, [file])
    file.write_text("new")
    assert [admin.poll(), admin.poll()] == [0, 0] and caplog.text.count("can't start new thread") == 1
    now_s += renewed_tls.AGAIN_S
    assert [admin.poll(), admin.poll()] == [2, 2] and len(made) == 3


def test_a_file_that_was_away_and_is_away_again_is_named_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr(renewed_tls, "monotonic", lambda: now_s)
    file, aside = tmp_path / "ca.pem", tmp_path / "aside"
    file.write_text("1")
    client: Any = SimpleNamespace(poll=int)
    admin: Any = RenewedAdmin(lambda: client, [file])
    for named in (1, 2):
        file.rename(aside)
        for _ in range(2):
            assert admin.poll() == 0
            now_s += renewed_tls.AGAIN_S
        assert caplog.text.count("No such file") == named
        aside.rename(file)
        assert admin.poll() == 0
