"""The guard answers the user's own browser and nobody else, whatever is sent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from mac_runner.errors import ConfigError
from mac_runner.viewer.testing import HEADERS, Address, allowed_hosts
from tests.viewer.served import Served, served


class Probe(NamedTuple):
    """A request by a stranger or with a twist, and the statuses that are right for it."""

    name: str
    data: str
    statuses: tuple[int, ...]


def _request(target: str, *headers: str, method: str = "GET", version: str = "1.1") -> str:
    return "\r\n".join([f"{method} {target} HTTP/{version}", "Connection: close", *headers, "", ""])


def probes(viewer: Served) -> Iterator[Probe]:
    """All probes. `host` and `own` are what the user's own browser sends."""
    port, token = viewer.port, viewer.token
    host, own = f"Host: 127.0.0.1:{port}", f"Cookie: {viewer.cookie}"
    wrong = f"Cookie: mac_run_{port}={'x' * len(token)}"

    # Strangers on this machine.
    yield Probe("no token", _request("/api/run", host), (401,))
    yield Probe("no token for the page", _request("/", host), (401,))
    yield Probe("no token for a file", _request("/static/app.js", host), (401,))
    yield Probe("a wrong cookie", _request("/api/run", host, wrong), (401,))
    yield Probe("an empty cookie", _request("/api/run", host, f"Cookie: mac_run_{port}="), (401,))
    yield Probe("the beginning of the token", _request("/api/run", host, own[:-1]), (401,))
    yield Probe("more than the token", _request("/api/run", host, own + "x"), (401,))
    yield Probe("the cookie of another port", _request("/api/run", host, f"Cookie: mac_run_1={token}"), (401,))
    yield Probe("a wrong token in the address", _request("/?token=x", host), (401,))
    yield Probe("two tokens in the address", _request(f"/?token=x&token={token}", host), (401,))
    yield Probe("the token at another path", _request(f"/api/run?token={token}", host), (401,))
    yield Probe("the token in a header", _request("/api/run", host, f"Authorization: Bearer {token}"), (401,))
    yield Probe("the token as a password", _request("/api/run", host, f"X-Token: {token}"), (401,))
    yield Probe("a cookie that is no text", _request("/api/run", host, f"Cookie: mac_run_{port}=\x80\xff"), (400, 401))

    # Pages of others in the user's browser.
    yield Probe("a name made to point here", _request("/api/run", f"Host: evil.example:{port}", own), (403,))
    yield Probe("a name without the port", _request("/api/run", "Host: 127.0.0.1", own), (403,))
    yield Probe("another port in the name", _request("/api/run", "Host: 127.0.0.1:1", own), (403,))
    yield Probe("a name that ends like ours", _request("/api/run", f"Host: evil127.0.0.1:{port}", own), (403,))
    yield Probe("a user in the name", _request("/api/run", f"Host: x@127.0.0.1:{port}", own), (400, 403))
    yield Probe("no name", _request("/api/run", own), (400,))
    yield Probe("no name in HTTP/1.0", _request("/api/run", own, version="1.0"), (400,))
    yield Probe("two names", _request("/api/run", host, f"Host: evil.example:{port}", own), (400,))
    yield Probe("an empty name", _request("/api/run", "Host:", own), (400, 403))
    yield Probe("a request across sites", _request("/api/run", host, own, "Sec-Fetch-Site: cross-site"), (403,))
    yield Probe("a request of another port", _request("/api/run", host, own, "Sec-Fetch-Site: same-site"), (403,))
    yield Probe("a foreign origin", _request("/api/run", host, own, "Origin: http://evil.example"), (403,))
    yield Probe("an origin of another port", _request("/api/run", host, own, "Origin: http://127.0.0.1:1"), (403,))
    yield Probe("an origin over TLS", _request("/api/run", host, own, f"Origin: https://127.0.0.1:{port}"), (403,))
    yield Probe("a hidden origin", _request("/api/run", host, own, "Origin: null"), (403,))
    yield Probe("the token from a foreign page", _request(f"/?token={token}", host, "Origin: null"), (403,))

    # Anything but reading.
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"):
        yield Probe(f"method {method}", _request("/api/run", host, own, method=method), (400, 405))
    yield Probe("a method at no page", _request("/nothing", host, own, method="POST"), (405,))
    yield Probe("a tunnel", _request("evil.example:443", host, own, method="CONNECT"), (400, 405))
    yield Probe("a body", _request("/api/run", host, own, "Content-Length: 5") + "hello", (400,))
    yield Probe("a body in chunks", _request("/api/run", host, own, "Transfer-Encoding: chunked") + "0\r\n\r\n", (400,))
    yield Probe("both lengths", _request("/", host, own, "Content-Length: 1", "Transfer-Encoding: chunked"), (400,))
    websocket = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: eA==")
    yield Probe("a websocket", _request("/api/stream", host, own, *websocket), (400,))
    yield Probe("another protocol", _request("/api/run", host, own, "Upgrade: h2c", "Connection: Upgrade"), (400,))

    # Paths that are none of ours.
    climbs = ("/../../etc/passwd", "/static/../server.py", "/static/%2e%2e/server.py", "/static/..%2fserver.py")
    more = ("/static/%2e%2e%2f%2e%2e%2fexperiment.yaml", "/static/....//server.py", "/static/..\\server.py")
    others = (
        "/static//etc/passwd",
        "/static/%2Fetc%2Fpasswd",
        "/static/app.js%00.css",
        "/static/",
        "/static/index.html",
    )
    for path in (*climbs, *more, *others, "/static/APP.JS", "/api", "/api/", "/api/c/", "/api/run/", "/%00"):
        yield Probe(f"path {path}", _request(path, host, own), (400, 404))
    yield Probe("two slashes", _request("//api/run", host, own), (400, 404))
    yield Probe("two slashes and a name", _request("//evil.example/api/run", host, own), (400, 404))
    yield Probe("a target with a name", _request("http://evil.example/api/run", host, own), (400,))
    yield Probe("a target with our name", _request(f"http://127.0.0.1:{port}/api/run", host, own), (400,))
    yield Probe("a target without a path", _request("*", host, own), (400, 404, 405))
    yield Probe("a fragment in the target", _request("/api/run#x", host, own), (200, 400, 404))
    yield Probe("a NUL in the target", _request("/api/\x00run", host, own), (400, 404))
    yield Probe("a raw byte in the target", _request("/api/r\xfcn", host, own), (400, 404))

    # Names that are not there.
    names = ("../small-000001", "%2e%2e%2fsmall-000001", "other-000001", "small-000001.json", "small-000001%00")
    for name in (*names, "-1", "1e0", "0x1", "99999999999999999999999", "%D9%A1", "%20", "%0A1", "1%2F2"):
        yield Probe(f"conversation {name}", _request(f"/api/c/{name}", host, own), (400, 404))
    for slug in ("..", "%2e%2e", "/etc", "small", "%00", "a%2Fb", "x" * 1000):
        yield Probe(f"combination {slug[:20]}", _request(f"/api/run?run={slug}", host, own), (404,))
    for turn in ("0", "..%2F..%2Fx", "0%2FNobody%2F0%2F0", "%00", "x" * 500):
        yield Probe(f"turn {turn[:20]}", _request(f"/api/c/0/turn/{turn}", host, own), (400, 404))

    # Parameters that are none.
    bad = (
        "since=-1",
        "since=x",
        "since=1.5",
        "since=9e9",
        "since=" + "9" * 40,
        "since=0&since=1",
        "version=x",
        "other=1",
    )
    for query in bad:
        yield Probe(f"query {query[:20]}", _request(f"/api/index?{query}", host, own), (400,))
    yield Probe("a parameter without a value", _request("/api/index?since", host, own), (200, 400))
    yield Probe("a seat that is none", _request("/api/c/0?seat=__proto__", host, own), (400,))
    yield Probe("a search for nothing", _request("/api/search?q=", host, own), (400,))
    yield Probe("a search for very much", _request(f"/api/search?q={'x' * 4000}", host, own), (400,))
    yield Probe("a search for a pattern", _request("/api/search?q=(a%2B)%2B%24", host, own), (200,))

    # What is no request.
    yield Probe("a long header", _request("/api/run", host, own, f"X-Long: {'x' * 20_000}"), (400, 431))
    yield Probe("a long target", _request(f"/{'x' * 20_000}", host, own), (400, 404, 414))
    yield Probe("a broken header", _request("/api/run", host, own, "no colon here"), (400,))
    yield Probe("a space before the colon", _request("/api/run", "Host : x", own), (400,))
    yield Probe("a folded header", _request("/api/run", host, own, "X-A: b\r\n c"), (200, 400))
    yield Probe("another version of HTTP", _request("/api/run", host, own, version="3.7"), (200, 400, 505))
    yield Probe("no HTTP at all", "hello\r\n\r\n", (400,))
    yield Probe("TLS", "\x16\x03\x01\x00\x05hello\r\n\r\n", (400,))


@pytest.mark.ci
def test_guard_refuses_every_stranger_and_every_twist(viewer: Served, caplog: pytest.LogCaptureFixture) -> None:
    """A refusal says nothing of the run, the server goes on, and nobody fills the terminal."""
    failures, tried = [], 0
    for probe in probes(viewer):
        answer = viewer.raw(probe.data.encode("latin-1"))
        tried += 1
        is_bare = answer.status in (400, 431) and "content-security-policy" not in answer.headers
        is_headed = is_bare or all(answer.headers.get(name.lower()) == value for name, value in HEADERS.items())
        has_leak = answer.status != 200 and re.search(rb"Traceback|root:|town_of_salem", answer.body) is not None
        if answer.status not in probe.statuses or not is_headed or has_leak or viewer.token.encode() in answer.body:
            failures.append((probe.name, answer.status, answer.headers, answer.body[:200]))

    assert failures == []
    assert tried >= 39
    assert viewer.get("/api/run").status == 200
    assert caplog.records == []


@pytest.mark.ci
def test_token_in_the_address_becomes_a_cookie_that_opens_the_pages(viewer: Served) -> None:
    first = _request(f"/?token={viewer.token}", f"Host: localhost:{viewer.port}", "Sec-Fetch-Site: none")
    answer = viewer.raw(first.encode())

    assert (answer.status, answer.headers["location"]) == (303, "/")
    cookie, *attributes = answer.headers["set-cookie"].split("; ")
    assert cookie == viewer.cookie
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(attributes)
    page = viewer.raw(_request("/", f"Host: [::1]:{viewer.port}", f"Cookie: a=b; {cookie}").encode())
    assert page.status == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "access-control-allow-origin" not in page.headers


def test_own_pages_are_answered(viewer: Served) -> None:
    own = ("Sec-Fetch-Site: same-origin", f"Origin: http://127.0.0.1:{viewer.port}")
    for headers in (own, ("Sec-Fetch-Site: none",), ("Accept-Encoding: gzip, br",), ()):
        assert viewer.get("/api/run", *headers).json["name"] == "small", headers
    head = viewer.get("/api/run", method="HEAD")
    assert (head.status, head.body) == (200, b"")
    answer = viewer.get("/api/index")
    again = viewer.get("/api/index", f"If-None-Match: {answer.headers['etag']}")
    assert (again.status, again.body) == (304, b"")


def test_other_names_are_allowed_one_by_one(played: Path) -> None:
    with served(played, names=("node7", "tunnel.example:9000")) as found:
        for host, status in ((f"node7:{found.port}", 200), ("tunnel.example:9000", 200), ("node7:1", 403)):
            answer = found.raw(_request("/api/run", f"Host: {host}", f"Cookie: {found.cookie}").encode())
            assert answer.status == status, host


def test_other_machines_are_let_in_only_by_a_name() -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        with pytest.raises(ConfigError, match="--allow-host"):
            Address(host=host).check()
    Address(host="0.0.0.0", names=("node7",)).check()

    assert allowed_hosts("0.0.0.0", 5, ["node7"]) == {"127.0.0.1:5", "localhost:5", "[::1]:5", "node7:5"}
    assert "[fe80::1]:5" in allowed_hosts("::", 5, ["fe80::1"])
