"""One broker for the tests that kill; it may have any number of messages under way."""

from __future__ import annotations

import pytest

from helpers.servers import mosquitto


@pytest.fixture(scope="session")
def broker(tmp_path_factory):
    with mosquitto(
        tmp_path_factory.mktemp("mosquitto"), config_lines=["max_inflight_messages 0"]
    ) as server:
        yield server
