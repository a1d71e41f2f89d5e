"""A real nats-server process for tests: started, killed and started again on one port.

    with NatsServer(folder) as server:
        options = NatsOptions(servers=(server.url,))
        server.kill()
        server.start()

It ends with its context, whatever happens in it.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Self

from benchmarks.kits.cluster_kit import HOST
from benchmarks.nats.peer import nats_server_path

from tests.patience import patient
from tests.ports import free_port

START_S = 20.0


class NatsServer:
    def __init__(self, folder: Path, *, config: str = "", scheme: str = "nats") -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"{scheme}://{HOST}:{self.port}"
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self, config: str | None = None) -> None:
        """Until it takes connections."""
        assert self._process is None, "it runs already"
        if config is not None:
            self._config = config
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "nats.conf"
        file.write_text(f"listen: {json.dumps(f'{HOST}:{self.port}')}\n{self._config}\n")
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [nats_server_path(), "-c", str(file)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        end = time.monotonic() + patient(START_S)
        while True:
            try:
                socket.create_connection((HOST, self.port), timeout=1).close()
                return
            except OSError:
                assert self._process.poll() is None, (self.folder / "log").read_text()[-2_000:]
                assert time.monotonic() < end, "nats-server did not come up"
                time.sleep(0.02)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Frozen: connections stand and nothing moves."""
        assert self._process is not None, "it does not run"
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None, "it does not run"
        self._process.send_signal(signal.SIGCONT)

    @property
    def is_running(self) -> bool:
        return self._process is not None
