"""Strangers at the health port get what is made for everybody, and by its own names only."""

from __future__ import annotations

import time

from daemon import get
from hostile import Daemon


def test_metrics_are_rendered_once_in_a_second_for_everybody() -> None:
    with Daemon() as daemon:
        begin = time.monotonic()
        texts = [get(daemon.health(), "/metrics")[1] for _ in range(20)]
        seconds = time.monotonic() - begin
        assert len(set(texts)) <= 2 + seconds  # each request changes a counter of them


def test_the_health_port_answers_to_no_name_of_strangers() -> None:
    with Daemon() as daemon:
        connection = daemon.health()
        connection.putrequest("GET", "/metrics", skip_host=True)
        connection.putheader("Host", "rebound.example:9477")
        connection.endheaders()
        response = connection.getresponse()
        assert response.status == 421
        assert "rebound.example" in response.read().decode()
        assert get(daemon.health(), "/livez")[0] == 200
