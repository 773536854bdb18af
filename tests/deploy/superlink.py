"""A SuperLink and SuperNodes on this machine, over TLS: the commands of Flower, in Flower's own environment.

Standard library alone, so that a program in that environment can use it too.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path

# Makes a certificate of this machine's own, which is its own authority: python -c CERTIFY FOLDER
CERTIFY = """
import datetime, ipaddress, sys
from pathlib import Path
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
folder, now, day = Path(sys.argv[1]), datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=1)
key = ec.generate_private_key(ec.SECP256R1())
name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
made = made.serial_number(x509.random_serial_number()).not_valid_before(now - day).not_valid_after(now + day)
made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
(folder / "own.pem").write_bytes(made.sign(key, hashes.SHA256()).public_bytes(pem))
(folder / "own.key").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class SuperLink:
    """Use as a context; ``environment`` is what Flower's commands need to find it."""

    def __init__(self, folder: Path, flower: Path) -> None:
        self.folder, self.bin, self.port = folder, flower / "bin", free_port()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        path = f"{self.bin}{os.pathsep}{kept.get('PATH', '')}"
        own = {"FLWR_HOME": str(folder / "home"), "FLWR_TELEMETRY_ENABLED": "0", "PATH": path}
        self.environment = {**kept, **own}
        self._stack = ExitStack()

    def __enter__(self) -> SuperLink:
        (self.folder / "home").mkdir(parents=True)
        subprocess.run([self.bin / "python", "-c", CERTIFY, self.folder], check=True, env=self.environment)
        pem = self.folder / "own.pem"
        (self.folder / "home" / "config.toml").write_text(
            '[superlink]\ndefault = "here"\n'
            f'[superlink.here]\naddress = "127.0.0.1:{self.port}"\nroot-certificates = "{pem}"\n',
            encoding="utf-8",
        )
        self._start(
            "flower-superlink", "--port", self.port, "--disable-runtime-dependency-installation",
            "--ssl-ca-certfile", pem, "--ssl-certfile", pem, "--ssl-keyfile", self.folder / "own.key",
        )  # fmt: skip
        until = time.monotonic() + 120
        while not self._answers() and time.monotonic() < until:
            time.sleep(0.1)  # there is no event to wait for in another process
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def node(self, config: str = "") -> subprocess.Popen[bytes]:
        """Start a SuperNode; ``config`` is its ``--node-config``."""
        return self._start(
            "flower-supernode", "--root-certificates", self.folder / "own.pem", "--superlink",
            f"127.0.0.1:{self.port}", "--port", free_port(), *(["--node-config", config] if config else []),
        )  # fmt: skip

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """End a process at once, with all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def log(self) -> str:
        return (self.folder / "flower.log").read_text(encoding="utf-8", errors="replace")

    def _start(self, name: str, *words: object) -> subprocess.Popen[bytes]:
        with (self.folder / "flower.log").open("ab") as log:
            process = subprocess.Popen(
                [str(self.bin / name), *map(str, words)],
                env=self.environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._stack.callback(self.end, process)
        return process

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0
