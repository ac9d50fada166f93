"""A daemon of another machine, asked over HTTP: what needs no session, with a token. Training needs a unix socket."""

from __future__ import annotations

import http.client
import logging
import os
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

from ._step._report import StepReport, decode_report
from ._version import __version__
from ._wire import load, plain, request
from ._wire_errors import error_from_wire, local_error
from .errors import ConnectionFailed, ProtocolError, Unauthorized, UsageError

__all__ = ["RemoteDaemon", "is_remote"]

_log = logging.getLogger("gradsync")

_SCHEMES = ("http", "https")
_PORTS = {"http": 80, "https": 443}


def is_remote(address: str) -> bool:
    """Whether an address is that of a daemon over HTTP, and not a socket's path."""
    return address.startswith(tuple(f"{scheme}://" for scheme in _SCHEMES))


class RemoteDaemon:
    """A daemon whose `[server] tcp` is reached over HTTP or, through a proxy, over HTTPS.

    Each call is a request of its own. The token is read for each of them, so that a new one is used at once.
    """

    def __init__(
        self,
        address: str,
        *,
        token_file: str | os.PathLike[str] | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        timeout: float = 30.0,
    ) -> None:
        """`address` is `http://HOST:PORT` or `https://HOST[:PORT][/PREFIX]`.

        Args:
            token_file: file with the token, by default $GRADSYNC_TOKEN_FILE.
            ca_file: certificates to trust for HTTPS, by default $GRADSYNC_CA_FILE, else those of the system.
            timeout: seconds for each answer.

        Raises:
            UsageError: the address is none, no token file is named, or the certificates cannot be read.
        """
        self.address = address.rstrip("/")
        self._url = _parse(self.address)
        self._token_file = os.fspath(token_file or os.environ.get("GRADSYNC_TOKEN_FILE") or "")
        if not self._token_file:
            raise UsageError(
                f"{self.address} asks for a token: set GRADSYNC_TOKEN_FILE, or token_file=, to a file with that of the "
                "daemon ([server] tcp_token_file or tcp_read_token_file)"
            )
        self._timeout = timeout
        self._tls = None
        if self._url.scheme == "https":
            self._tls = _trust(os.fspath(ca_file or os.environ.get("GRADSYNC_CA_FILE") or ""))
        elif not _is_loopback(self._url.hostname or ""):
            _log.warning("%s is not encrypted: the network can read the token; use https and a proxy", self.address)

    def call(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """Any method of the protocol that needs no session.

        Raises:
            RpcError: the daemon answered with an error (`Unauthorized`, `ReadOnly`, `LocalOnly`, …).
            ConnectionFailed: nothing that is a daemon answered.
            UsageError: the token cannot be read.
        """
        status, body = self._post(request(1, method, plain(dict(params or {}))))
        try:
            reply = load(body)
        except (ValueError, ProtocolError):
            reply = None
        if isinstance(reply, dict) and "error" in reply:
            raise error_from_wire(reply["error"])
        if isinstance(reply, dict) and "result" in reply:
            return reply["result"]
        text = body.decode("utf-8", "replace").strip()[:500]
        if status == 401:
            raise local_error(
                Unauthorized,
                f"{self.address} refuses the token of {self._token_file}: {text}",
                "give it the token that the daemon has now",
            )
        raise ConnectionFailed(
            "not_gradsync",
            f"{self.address} answered HTTP {status} {text}".rstrip() + "; check the address, and what listens there",
            self.address,
        )

    def status(self) -> dict[str, Any]:
        """The daemon's status: the daemon itself and the jobs of all users."""
        result: dict[str, Any] = self.call("status.get")
        return result

    def stats(self, job: str, last: int = 1) -> list[StepReport]:
        """The last reports of a job, oldest first; tensors are named by their index."""
        reply = self.call("stats.get", {"job": job, "last": last})
        return [decode_report(wire, lambda index: f"#{index}") for wire in reply["reports"]]

    def _post(self, text: str) -> tuple[int, bytes]:
        headers = {
            "Content-Type": "application/json",
            "Authorization": f"Bearer {self._token()}",
            "User-Agent": f"gradsync-python/{__version__}",
        }
        connection = self._connection()
        try:
            connection.request("POST", f"{self._url.path}/rpc", text, headers)
            response = connection.getresponse()
            return response.status, response.read()
        except ssl.SSLCertVerificationError as error:
            text = f"the certificate of {self.address} is not trusted: {error.verify_message}"
            raise ConnectionFailed("refused", f"{text}; name its CA in GRADSYNC_CA_FILE", self.address) from error
        except TimeoutError as error:
            text = f"{self.address} did not answer within {self._timeout:g} s; see the daemon's log"
            raise ConnectionFailed("timeout", text, self.address) from error
        except (OSError, http.client.HTTPException) as error:
            text = f"{self.address} cannot be reached: {error or type(error).__name__}"
            raise ConnectionFailed("not_found", f"{text}; check [server] tcp and the network", self.address) from error
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self._url.hostname or "", self._url.port or _PORTS[self._url.scheme]
        if self._tls is None:
            return http.client.HTTPConnection(host, port, timeout=self._timeout)
        return http.client.HTTPSConnection(host, port, timeout=self._timeout, context=self._tls)

    def _token(self) -> str:
        try:
            with open(self._token_file, encoding="ascii") as file:
                token = file.read(4096).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"the token in {self._token_file!r} cannot be read: {error}") from error
        if not token or any(c.isspace() for c in token):
            raise UsageError(f"{self._token_file!r} holds no token: it has to be one word")
        return token

    def __repr__(self) -> str:
        return f"RemoteDaemon({self.address!r})"


def _parse(address: str) -> SplitResult:
    try:
        url = urlsplit(address)
        usable = is_remote(address) and url.hostname and (url.port is None or url.port > 0)
    except ValueError:
        usable = False
    if not usable or url.query or url.fragment or url.username or any(c.isspace() for c in address):
        raise UsageError(f"{address!r} is no address of a daemon over HTTP: give http://HOST:PORT or https://HOST")
    return url


def _trust(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        raise UsageError(f"the certificates in {ca_file!r} cannot be read: {error}") from error


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")
