"""What nobody should send, by the million, while two ranks step: typed errors or a close that names the limit, right
results for the ranks, and a daemon that afterwards has what it had before."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import secrets
import socket
import time
from collections.abc import Iterator
from typing import Any

import floods
import pytest
from daemon import DEADLINE_S, Daemon, get
from floods import MIB
from holdings import becomes, metric
from raw import REPLICATED, UPGRADE, RawClient, RawRank, declare_all, fetch, frame, header, request
from walkers import undisturbed

FRAMES = 1_000_000


@pytest.mark.long
@pytest.mark.rare
@pytest.mark.timeout(300)  # a client that sends what is refused is read later
def test_a_million_frames_of_garbage() -> None:
    """What costs least is sent most; every kind is sent."""
    with Daemon() as daemon, undisturbed(daemon):
        sent = sum(kind(daemon.socket) for kind in floods.KINDS for _ in range(3))
        many = [kind for kind in floods.KINDS if kind(daemon.socket) >= 500]
        while sent < FRAMES:
            sent += sum(kind(daemon.socket) for kind in many)
        # Some were read in full and answered, others ended their connection: both arrived.
        assert metric(daemon, "gradsync_received_bytes_total") > 1_000_000
        assert metric(daemon, "gradsync_connections_accepted_total") > 100
        # And its senders were read later than the ranks that step.
        assert metric(daemon, "gradsync_read_pauses_total") > 100


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        (b"[" * 33 + b"]" * 33, "parse_error", "32 levels"),
        (b"[" * 10_000, "parse_error", "32 levels"),
        (b'{"a":' * 10_000, "parse_error", "32 levels"),
        (b" " * MIB, "parse_error", "column 1048577"),
        (b'{"jsonrpc": "2.0", "jsonrpc": "2.0"}', "parse_error", "jsonrpc"),
        (b"[" + b",".join([request(1, "status.get")] * 65) + b"]", "invalid_request", "64 requests"),
        (b'{"jsonrpc": "2.0", "id": "a", "method": "' + b"x" * 100_000 + b'"}', "method_not_found", "100000 bytes"),
        (b'{"jsonrpc": "2.0", "id": "' + b"x" * 129 + b'", "method": "status.get"}', "invalid_request", "128"),
        (b'{"jsonrpc": "2.0", "id": 18446744073709551616, "method": "a"}', "invalid_request", "18446744073709551616"),
    ],
    ids=["33 lists", "10000 lists", "10000 objects", "spaces", "twice", "batch", "name", "id", "integer"],
)
def test_a_text_above_a_limit_is_an_error_that_names_it(text: bytes, kind: str, says: str) -> None:
    with Daemon() as daemon, RawClient(daemon.socket) as client:
        client.send(frame(text))
        error = client.message()["error"]
        assert error["data"]["kind"] == kind
        assert says in error["message"]
        assert client.call("status.get")["state"] == "serving"


def test_a_message_may_be_a_mebibyte_and_no_byte_more() -> None:
    whole = request(1, "status.get")
    with Daemon() as daemon:
        for pieces in (
            [frame(whole + b" " * (MIB + 1 - len(whole)))],
            [header(64 * MIB), bytes(2 * MIB)],
            [frame(b" " * (MIB // 2), fin=False), frame(b" " * (MIB // 2), 0, fin=False), frame(b" ", 0)],
            [header(2**63 - 1), b" " * (MIB + 1)],
        ):
            with RawClient(daemon.socket) as client:
                for piece in pieces:
                    client.send(piece)
                end = client.closed()
                assert end.code == 1009
                assert end.reason.startswith("limit_exceeded: a message is larger than 1048576 bytes")
        with RawClient(daemon.socket) as client:
            client.send(frame(whole + b" " * (MIB - len(whole))))
            assert client.message()["result"]["state"] == "serving"


def test_who_writes_a_byte_at_a_time_is_read_and_who_stops_holds_nobody_up() -> None:
    with Daemon() as daemon, undisturbed(daemon), contextlib.ExitStack() as stack:
        for _ in range(50):  # half-open: they said nothing, or half of something, and never will
            for begun in (b"", b"GET / HTT"):
                raw = stack.enter_context(socket.socket(socket.AF_UNIX))
                raw.connect(daemon.socket)
                raw.sendall(begun)
            for begun in (b"", frame(b"{}")[:4], frame(b"{", fin=False)):
                stack.enter_context(RawClient(daemon.socket)).send(begun)
        slow = stack.enter_context(socket.socket(socket.AF_UNIX))
        slow.settimeout(DEADLINE_S)
        slow.connect(daemon.socket)
        for piece in (UPGRADE, frame(request(1, "status.get"))):
            for byte in piece:
                slow.sendall(bytes([byte]))
                time.sleep(0.001)
            if piece is UPGRADE:
                assert slow.recv(65536).startswith(b"HTTP/1.1 101 ")
        heard = b""
        while b'"serving"' not in heard:
            heard += slow.recv(65536)


def test_who_asks_and_does_not_read_is_disconnected() -> None:
    with Daemon() as daemon, undisturbed(daemon):
        with RawClient(daemon.socket) as client:
            batches = [b"".join(frame(request(100 * i + j, "status.get")) for j in range(100)) for i in range(1000)]
            with pytest.raises((BrokenPipeError, ConnectionResetError)):
                client.send(b"".join(batches))
        assert metric(daemon, "gradsync_slow_readers_total") == 1
        assert "does not read" in daemon.wait_for_log("closing a connection that does not read")["msg"]


def test_a_subscriber_that_does_not_read_loses_events_and_nobody_waits_for_it() -> None:
    with Daemon() as daemon, undisturbed(daemon), contextlib.ExitStack() as stack:
        silent = [stack.enter_context(RawClient(daemon.socket, initialize=True)) for _ in range(20)]
        for client in silent:
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.call("events.subscribe", topics=["step", "alert", "epoch"])
        becomes(lambda: int(metric(daemon, "gradsync_rpc_events_dropped_total") > 0), 1)


def test_ten_thousand_subscriptions_meet_the_limit_of_their_connection() -> None:
    with Daemon() as daemon, undisturbed(daemon), RawClient(daemon.socket, initialize=True) as client:
        refused = 0
        for _ in range(20):
            asked = [client.ask("events.subscribe", topics=["alert"]) for _ in range(500)]
            for answer in map(client.answer, asked):
                if "error" in answer:
                    refused += 1
                    assert answer["error"]["data"]["kind"] == "limit_exceeded"
                    assert "16 subscriptions, and may have no more" in answer["error"]["message"]
        assert refused == 10_000 - 16
        assert metric(daemon, "gradsync_rpc_subscriptions") == 16


def as_nobody(address: str, token: str, pipe: Any) -> None:
    os.setgid(65534)
    os.setuid(65534)
    pipe.send(fetch(address, token)[0])


def as_another_process(address: str, token: str, pipe: Any) -> None:
    pipe.send(fetch(address, token)[0])


def test_tokens_are_good_once_and_for_one_process_only() -> None:
    processes = multiprocessing.get_context("fork")
    with Daemon("--server-socket-mode", "666") as daemon, undisturbed(daemon):
        os.chmod(os.path.dirname(daemon.socket), 0o755)
        thieves = [as_another_process, as_nobody] if os.geteuid() == 0 else [as_another_process]
        with RawRank(daemon.socket, "victim", 0, 1) as rank:
            for _ in range(100):
                for _ in range(100):
                    answer, fds = fetch(daemon.socket, secrets.token_hex(16))
                    assert answer["error"]["data"]["kind"] == "bad_token"
                    assert not fds
            for thief in thieves:
                given = rank.call("buffers.allocate", bytes=4096, device="cpu")
                ours, theirs = processes.Pipe()
                other = processes.Process(target=thief, args=(daemon.socket, given["token"], theirs))
                other.start()
                assert ours.poll(DEADLINE_S), "the thief says nothing"
                assert ours.recv()["error"]["data"]["kind"] == "bad_token"
                other.join(DEADLINE_S)
                answer, fds = fetch(daemon.socket, given["token"])  # what a thief tried is still the owner's
                assert answer == {"bytes": 4096}
                os.close(fds[0])
                answer, fds = fetch(daemon.socket, given["token"])
                assert answer["error"]["data"]["kind"] == "bad_token"
                assert not fds


def tensor(**changed: object) -> dict[str, object]:
    return {"name": "w", "shape": [4], "dtype": "float32", "mesh": "m", "placements": REPLICATED, **changed}


@pytest.mark.parametrize(
    ("tensors", "kind", "path", "says"),
    [
        ([tensor(shape=[2**63])], "invalid_params", "tensors[0].shape[0]", "9223372036854775806"),
        ([tensor(shape=[2**64])], "invalid_params", "tensors[0].shape[0]", "fits 64 bits"),
        ([tensor(divisor=2**80)], "invalid_params", "tensors[0].divisor", "fits 64 bits"),
        ([tensor(shape=[-1])], "invalid_params", "tensors[0].shape[0]", "is -1"),
        ([tensor(shape=[1.5])], "invalid_params", "tensors[0].shape[0]", "1.5"),
        ([tensor(shape=[1] * 33)], "invalid_params", "tensors[0].shape", "0 to 32"),
        ([tensor(shape=[2**40, 2**40])], "invalid_declaration", "tensors[0].shape", "2^62 bytes"),
        ([tensor(shape=[2**60])], "invalid_declaration", "tensors[0].shape", "2^62 bytes"),
        ([tensor(name=f"w{i}", shape=[2**58]) for i in range(8)], "invalid_declaration", "tensors", "0 to 3"),
        ([tensor(local_shape=[5])], "invalid_declaration", "tensors[0].local_shape[0]", "local_shape[0] is 5"),
        ([tensor(local_shape=[2])], "invalid_declaration", "tensors[0].local_shape[0]", "shape[0] is 4"),
        ([tensor(local_shape=[2**62])], "invalid_declaration", "tensors[0].local_shape[0]", str(2**62)),
        ([tensor(local_shape=[-4])], "invalid_params", "tensors[0].local_shape[0]", "is -4"),
        ([tensor(local_shape=[2, 2])], "invalid_declaration", "tensors[0].local_shape", "2 dims"),
        ([tensor(local_shape=[4], local_offset=[1])], "invalid_declaration", "tensors[0].local_offset[0]", "beyond"),
        ([tensor(shape=[1 << 20])], "invalid_declaration", "buffer", "has 4096 bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 16 else "",
)
def test_sizes_that_lie_or_overflow_are_refused_by_name(
    small: Daemon, tensors: list[Any], kind: str, path: str, says: str
) -> None:
    with RawRank(small.socket, secrets.token_hex(4), 0, 1) as rank:
        rank.allocate(4096)
        for _ in range(20):
            error = rank.error("gradients.declare", buffer=rank.buffer, tensors=tensors)
            assert (error["data"]["kind"], error["data"].get("path")) == (kind, path)
            assert says in error["message"]
        assert "result" in rank.answered("gradients.declare", buffer=rank.buffer, tensors=[tensor()])


def test_a_local_shape_that_only_the_others_can_tell_is_a_lie_is_refused_to_all(small: Daemon) -> None:
    sharded = [{"axes": ["dp"], "kind": "shard", "dim": 0}]
    for _ in range(20):
        with contextlib.ExitStack() as stack:
            job = secrets.token_hex(4)
            ranks = [stack.enter_context(RawRank(small.socket, job, rank, 2)) for rank in range(2)]
            asked = []
            for rank in ranks:
                rank.allocate(4096)
                lie = tensor(placements=sharded, local_shape=[3])  # 3 + 3 of 4
                asked.append(rank.ask("gradients.declare", buffer=rank.buffer, tensors=[lie]))
            for rank, number in zip(ranks, asked, strict=True):
                error = rank.answer(number)["error"]
                assert error["data"]["kind"] == "invalid_declaration"
                assert error["data"]["tensor"] == "w"


@pytest.fixture(scope="module")
def small() -> Iterator[Daemon]:
    with Daemon("--limits-sessions", "8", "--limits-buffers-per-session", "2", "--limits-tensors", "10") as daemon:
        yield daemon


def test_quotas_of_ranks_buffers_tensors_and_memory_are_named(small: Daemon) -> None:
    with contextlib.ExitStack() as stack:
        ranks = [stack.enter_context(RawRank(small.socket, f"job-{i}", 0, 1)) for i in range(4)]
        fifth = stack.enter_context(RawClient(small.socket, initialize=True))
        mesh = [{"name": "m", "axes": [{"name": "dp", "size": 1}]}]
        for _ in range(20):
            refused = fifth.error("job.attach", job="fifth", rank=0, world_size=1, meshes=mesh)
            assert refused["data"]["kind"] == "limit_exceeded"
            assert "its limit is 4 (the limit sessions is 8)" in refused["message"]
        ranks[0].allocate(64)
        ranks[0].allocate(64)
        for _ in range(20):
            refused = ranks[0].error("buffers.allocate", bytes=64, device="cpu")
            assert refused["data"]["kind"] == "limit_exceeded"
            assert "the limit buffers_per_session is 2" in refused["message"]
            many = [tensor(name=f"w{number}") for number in range(11)]
            refused = ranks[0].error("gradients.declare", buffer=ranks[0].buffer, tensors=many)
            assert refused["data"]["kind"] == "limit_exceeded"
            assert "at most 10 in one declaration (limits.tensors)" in refused["message"]
        for size, kind in ((0, "invalid_params"), (-1, "invalid_params"), (2**62, "insufficient_memory")):
            refused = ranks[1].error("buffers.allocate", bytes=size, device="cpu")
            assert refused["data"]["kind"] == kind
            assert str(size) in refused["message"]


def test_a_world_that_overflows_is_refused_by_name(small: Daemon) -> None:
    with RawClient(small.socket, initialize=True) as client:
        for size, path in ((2**62, "world_size"), (-1, "world_size"), (2**63, "world_size")):
            mesh = [{"name": "m", "axes": [{"name": "dp", "size": 1}]}]
            error = client.error("job.attach", job="j", rank=0, world_size=size, meshes=mesh)
            assert (error["data"]["kind"], error["data"]["path"]) == ("invalid_params", path)
        mesh = [{"name": "m", "axes": [{"name": "a", "size": 2**31}, {"name": "b", "size": 2**33}]}]
        error = client.error("job.attach", job="j", rank=0, world_size=1, meshes=mesh)
        assert error["data"]["kind"] == "invalid_params"
        assert error["data"]["path"].startswith("meshes[0]")


def test_connections_above_the_limit_are_told_and_probes_get_in() -> None:
    with Daemon("--limits-connections", "12") as daemon, contextlib.ExitStack() as stack:  # one process may hold half
        for _ in range(6):
            stack.enter_context(RawClient(daemon.socket))
        for path in (daemon.socket, daemon.socket.replace(".sock", ".fd.sock")):
            for _ in range(20):
                with socket.socket(socket.AF_UNIX) as raw:
                    raw.settimeout(DEADLINE_S)
                    raw.connect(path)
                    told = raw.recv(4096).decode()
                    assert "limit_exceeded" in told
                    assert "has 6 connections open, the limit is 6 ([limits] connections=12)" in told
        assert get(daemon.health(), "/livez") == (200, "ok")


def test_errors_do_not_close_what_is_not_theirs() -> None:
    """A rank in the middle of a step floods its own connection; the step is still done, and right."""
    with Daemon() as daemon, contextlib.ExitStack() as stack:
        ranks = [stack.enter_context(RawRank(daemon.socket, "job", rank, 2)) for rank in range(2)]
        declare_all(ranks, ["w"], 100)
        for step in range(20):
            for rank in ranks:
                rank.fill(step + rank.rank)
            waiting = ranks[0].ask_finish(step)
            ranks[0].send(frame(b"{}") * 50 + frame(b"]") * 50)
            number = ranks[1].ask_finish(step)
            for _ in range(100):
                assert "error" in ranks[0].answer(-1)
            for rank, asked in zip(ranks, (waiting, number), strict=True):
                assert rank.finished(asked)["step"] == step
                assert rank.values[99] == 2 * step + 1
