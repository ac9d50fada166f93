"""Where a daemon is looked for, and which sockets in /tmp are not connected to."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gradsync
from gradsync._launch import _places
from gradsync._launch._places import open_socket, refuse_place, socket_places
from gradsync._step import _arena
from gradsync._step._arena import fetch_fd
from gradsync.errors import ConnectionFailed

TABLE = json.loads((Path(__file__).parents[2] / "contract" / "socket_places.json").read_text())
STRANGER = os.geteuid() + 1
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


@pytest.fixture
def folder() -> Iterator[str]:
    """In /tmp, whatever TMPDIR says, because the rules are about /tmp."""
    with tempfile.TemporaryDirectory(prefix="gradsync-places-", dir="/tmp") as name:
        yield name


@pytest.fixture
def listening(folder: str) -> Iterator[str]:
    """A socket in that folder where somebody listens."""
    path = f"{folder}/gradsync.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        yield path


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case["name"])
def test_places_are_those_of_the_table_that_the_daemon_is_tested_with_too(case: dict[str, Any]) -> None:
    writable = set(case["may_write"])
    assert socket_places(case["environment"], case["uid"], writable.__contains__) == case["places"]


def test_a_folder_of_this_user_is_connected_to(listening: str) -> None:
    open_socket(listening, 1.0).close()


@as_root
def test_a_folder_of_root_is_connected_to_by_others(listening: str) -> None:
    refuse_place(listening, STRANGER)


@as_root
def test_a_folder_of_a_stranger_is_never_connected_to(folder: str, listening: str) -> None:
    os.chown(folder, STRANGER, STRANGER)
    for path in (listening, f"{folder}/../{os.path.basename(folder)}/gradsync.sock"):
        with pytest.raises(ConnectionFailed, match=rf"{folder} belongs to uid {STRANGER}") as caught:
            gradsync.connect(path)
        assert caught.value.reason == "unsafe"
    with pytest.raises(ConnectionFailed, match="not connected to"):
        fetch_fd(listening, "token", 1.0)
    refuse_place(listening, STRANGER)  # its owner may


@as_root
def test_a_folder_that_others_may_write_to_needs_a_socket_of_this_user(folder: str, listening: str) -> None:
    os.chmod(folder, 0o1777)
    refuse_place(listening)
    os.chown(listening, STRANGER, STRANGER)
    with pytest.raises(ConnectionFailed, match=f"the socket belongs to uid {STRANGER}"):
        refuse_place(listening)


@as_root
def test_a_strangers_link_is_refused_wherever_it_leads(folder: str) -> None:
    link = f"{folder}-link"
    os.symlink("/run", link)
    try:
        refuse_place(f"{link}/gradsync.sock")
        os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
        with pytest.raises(ConnectionFailed, match=f"uid {STRANGER}"):
            refuse_place(f"{link}/gradsync.sock")
    finally:
        os.unlink(link)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: os.chmod(folder, 0o770), "has mode 0770 instead of 0700"),
        (lambda folder: os.chmod(folder, 0o755), "has mode 0755 instead of 0700"),
        (lambda folder: (os.rename(folder, folder + ".x"), os.symlink(folder + ".x", folder)), "is a symbolic link"),
        (lambda folder: (os.rmdir(folder), Path(folder).touch()), "is no directory"),
    ],
)
def test_the_private_folder_has_to_be_private(
    spoil: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "gradsync-mine"
    monkeypatch.setattr(_places, "_private_folder", lambda uid: str(mine))
    mine.mkdir(0o700)
    refuse_place(str(mine / "gradsync.sock"))
    mine.chmod(0o2700)  # as below an `emptyDir` with an fsGroup
    refuse_place(str(mine / "gradsync.sock"))
    spoil(str(mine))
    with pytest.raises(ConnectionFailed, match=said):
        refuse_place(str(mine / "gradsync.sock"))


def test_an_unsafe_place_does_not_hide_a_daemon_further_on(
    daemon: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "gradsync-mine"
    mine.mkdir(0o777)
    mine.chmod(0o777)
    unsafe = str(mine / "gradsync.sock")
    monkeypatch.setattr(_places, "_private_folder", lambda uid: str(mine))
    monkeypatch.setattr("gradsync._client.candidates", lambda address: [unsafe, daemon.path])
    with gradsync.connect() as client:
        assert client.address == daemon.path
    monkeypatch.setattr("gradsync._client.candidates", lambda address: [unsafe, str(tmp_path / "none.sock")])
    with pytest.raises(ConnectionFailed, match="not connected to") as caught:
        gradsync.connect()
    assert caught.value.reason == "unsafe"


def test_a_stranger_at_the_fd_socket_is_given_no_arena(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_arena, "refuse_place", lambda path: None)
    monkeypatch.setattr(_places, "_server_uid", lambda sock: STRANGER)
    path = str(tmp_path / "gradsync.fd.sock")
    tmp_path.chmod(0o777)
    with socket.socket(socket.AF_UNIX) as listener, open("/dev/null", "rb") as given:
        listener.bind(path)
        listener.listen()
        with pytest.raises(ConnectionFailed, match=f"uid {STRANGER} listens there"):
            _arena.give_fd(path, "token", given.fileno(), 60)
        accepted = listener.accept()[0]
        with accepted:
            assert accepted.recv(64) == b"", "nothing is said to it"


@pytest.mark.parametrize("mode", [0o755, 0o777], ids=["of this user alone", "that others may write to"])
def test_who_listens_counts_where_others_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int) -> None:
    """pytest's folders lie in /tmp, where an older rule holds; this one holds everywhere."""
    monkeypatch.setattr(_places, "refuse_place", lambda path: None)
    path = str(tmp_path / "gradsync.sock")
    tmp_path.chmod(mode)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        with open_socket(path, 60) as own:
            assert _places._server_uid(own) == os.geteuid()
        monkeypatch.setattr(_places, "_server_uid", lambda sock: STRANGER)
        if mode == 0o755:
            open_socket(path, 60).close()
            return
        with pytest.raises(ConnectionFailed, match=f"uid {STRANGER} listens there, .* belongs to uid {os.geteuid()}"):
            open_socket(path, 60)
