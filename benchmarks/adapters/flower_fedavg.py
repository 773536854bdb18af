"""Flower's own FedAvg over its own SuperLink and SuperNodes with TLS; the ClientApp sends back what it gets.

    python flower_fedavg.py BYTES ROUNDS SITES FOLDER

prints the seconds of each round (train alone, no evaluation), as JSON.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

SIZE, ROUNDS, SITES, FOLDER = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]).resolve()
LONGEST = 600.0  # seconds until it is given up
BIN = Path(sys.executable).parent
PROJECT = """
[project]
name = "exchange"
version = "1.0.0"
dependencies = []
[tool.flwr.app]
publisher = "benchmark"
[tool.flwr.app.components]
serverapp = "exchange.apps:server"
clientapp = "exchange.apps:client"
"""
APPS = """
import json, time
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

client = ClientApp()
server = ServerApp()

@client.train()
def train(message, context):
    answer = {{"arrays": message.content["arrays"], "metrics": MetricRecord({{"num-examples": 1}})}}
    return Message(content=RecordDict(answer), reply_to=message)

class Timed(FedAvg):
    times = []

    def configure_train(self, server_round, arrays, config, grid):
        self.times.append(time.perf_counter())
        return super().configure_train(server_round, arrays, config, grid)

@server.main()
def main(grid, context):
    start = np.random.default_rng(0).standard_normal({size} // 4, dtype=np.float32)
    strategy = Timed(fraction_evaluate=0.0, min_train_nodes={sites}, min_available_nodes={sites})
    strategy.start(grid=grid, initial_arrays=ArrayRecord({{"x": Array(start)}}), num_rounds={rounds})
    times = [*strategy.times, time.perf_counter()]
    with open({out!r} + ".new", "w") as file:
        json.dump([b - a for a, b in zip(times, times[1:])], file)
    import os
    os.rename({out!r} + ".new", {out!r})
"""


def certificate(folder: Path) -> Path:
    """A certificate of this machine's own, which is its own authority."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    other = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
    made = made.not_valid_after(now + datetime.timedelta(days=1)).add_extension(other, critical=False)
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    (folder / "own.pem").write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    (folder / "own.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / "own.pem"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    app, out, port = FOLDER / "app", FOLDER / "seconds.json", free_port()
    (app / "exchange").mkdir(parents=True)
    (app / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    (app / "exchange" / "__init__.py").touch()
    text = APPS.format(size=SIZE, sites=SITES, rounds=ROUNDS, out=str(out))
    (app / "exchange" / "apps.py").write_text(text, encoding="utf-8")
    pem = certificate(FOLDER)
    home = FOLDER / "home"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\nroot-certificates = "{pem}"\n',
        encoding="utf-8",
    )
    path = f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {**os.environ, "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "PATH": path}
    with ExitStack() as stack, (FOLDER / "flower.log").open("w") as log:

        def start(*words: object) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(
                list(map(str, words)), env=environment, stdout=log, stderr=log, start_new_session=True
            )
            stack.callback(process.wait)
            stack.callback(os.killpg, process.pid, 15)
            return process

        tls = ("--ssl-ca-certfile", pem, "--ssl-certfile", pem, "--ssl-keyfile", FOLDER / "own.key")
        start(BIN / "flower-superlink", *tls, "--port", port, "--disable-runtime-dependency-installation")
        for _ in range(SITES):
            start(
                BIN / "flower-supernode", "--root-certificates", pem, "--superlink", f"127.0.0.1:{port}",
                "--port", free_port(),
            )  # fmt: skip
        until = time.monotonic() + LONGEST
        while not answers(port) and time.monotonic() < until:
            time.sleep(0.2)
        submit = [BIN / "flwr", "run", app]
        if subprocess.run(submit, env=environment, stdout=log, stderr=log).returncode:
            raise SystemExit((FOLDER / "flower.log").read_text(encoding="utf-8")[-2000:])
        while not out.exists():
            if time.monotonic() > until:
                raise SystemExit((FOLDER / "flower.log").read_text(encoding="utf-8")[-2000:])
            time.sleep(0.5)  # there is no event to wait for in another process's file
    print(out.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
