"""A real S3 server on loopback, and a proxy in front of it that can be told to misbehave."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from polling import free_port, wait_until

KEY, SECRET = "test-key-id", "test-secret-which-nobody-may-see"
BUCKET = "bucket"

Fault = Callable[["Request"], "bytes | None"]


def rclone() -> str | None:
    """Find the server's program, beside the Python that runs the tests or anywhere."""
    beside = Path(sys.executable).parent / "rclone"
    return str(beside) if beside.exists() else shutil.which("rclone")


class Server:
    """`rclone serve s3` on a folder, in which a folder is a bucket."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / BUCKET).mkdir(parents=True)
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        program = rclone()
        assert program is not None
        options = {"--auth-key": f"{KEY},{SECRET}", "--addr": f"127.0.0.1:{self.port}"}
        flags = [word for option in options.items() for word in option]
        self.process = subprocess.Popen(
            [program, "serve", "s3", "--config", "/dev/null", *flags, str(self.folder)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(self._answers, within_s=20)

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, "the server ended"
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            return True
        return False

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@dataclass(frozen=True)
class Request:
    """What a client asked for: method, path, and how many requests came before it."""

    method: str
    path: str
    number: int


@dataclass
class Proxy:
    """Pass requests on to a server, one a connection, unless a fault is set.

    A fault looks at a request: None passes it on, bytes are answered instead, and an empty answer
    drops the connection. `change` may alter the server's answer, `delay_s` holds it back.
    """

    target_port: int
    fault: Fault = lambda request: None
    change: Callable[[Request, bytes], bytes] = lambda request, answer: answer
    delay_s: Callable[[Request], float] = lambda request: 0.0
    requests: list[Request] = field(default_factory=list)
    answered: list[Request] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def well(self) -> None:
        """Misbehave no more."""
        self.fault, self.change = lambda request: None, lambda request, answer: answer
        self.delay_s = lambda request: 0.0

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            head, body = _read_request(client)
            if not head:
                return
            method, path, _ = head.split(b"\r\n")[0].decode().split(" ")
            with self._lock:
                request = Request(method, path, len(self.requests))
                self.requests.append(request)
                self.in_flight += 1
                self.most_in_flight = max(self.most_in_flight, self.in_flight)
            try:
                time.sleep(self.delay_s(request))
                answer = self.fault(request)
                if answer is None:
                    answer = self.change(request, self._ask(head, body))
            finally:  # before the answer: who has it may ask for the next at once
                with self._lock:
                    self.in_flight -= 1
            with self._lock:
                self.answered.append(request)
            client.sendall(answer)

    def _ask(self, head: bytes, body: bytes) -> bytes:
        """Ask the server; the client is told that the connection ends with the answer."""
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection")]
        with socket.create_connection(("127.0.0.1", self.target_port), timeout=20) as server:
            server.sendall(b"\r\n".join([*lines, b"Connection: close"]) + b"\r\n\r\n" + body)
            answer = b""
            while piece := server.recv(1 << 16):
                answer += piece
        return answer


def _read_request(client: socket.socket) -> tuple[bytes, bytes]:
    received = b""
    while b"\r\n\r\n" not in received:
        piece = client.recv(1 << 16)
        if not piece:
            return b"", b""
        received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    wanted = int(lengths[0].partition(b":")[2]) if lengths else 0
    while len(body) < wanted:
        body += client.recv(1 << 16)
    return head, body


def status(code: int, body: bytes = b"") -> bytes:
    """Make a whole answer with a status and nothing more to say."""
    return b"HTTP/1.1 %d Fault\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (
        code,
        len(body),
        body,
    )


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[Server, Proxy]]:
    """Start a server and a proxy, and end them whatever happens."""
    server = Server(folder)
    server.start()
    proxy = Proxy(server.port)
    try:
        yield server, proxy
    finally:
        proxy.close()
        server.kill()
