"""The pipe over the real engine: bytes pass, whatever is killed comes back, and strangers are refused."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path

import psutil
import pytest

from conftest import SITES, Federation
from undrift.deploy import engine, kits
from undrift.deploy.nvflare_pipe import NVFlarePipe, write_job
from undrift.deploy.pipe import Failure

pytestmark = pytest.mark.deploy

SOON = 60.0


def messages(size: int) -> dict[str, bytes]:
    return {site: random.Random(f"{site}{size}").randbytes(size) for site in SITES}


def echo(pipe: NVFlarePipe, size: int = 1000) -> None:
    """All sites give back what they were sent."""
    sent = messages(size)
    assert dict(pipe.call(sent, SOON)) == sent


def answer_while(pipe: NVFlarePipe, trial: Federation, site: str, happens: int) -> tuple[bytes | Failure, float]:
    """Kill a process while a site is at work; the site's answer, and the seconds until it was known."""
    mark = trial.kits[site] / "waiting"
    mark.unlink(missing_ok=True)
    got: list[tuple[str, bytes | Failure]] = []
    thread = threading.Thread(target=lambda: got.extend(pipe.call({site: b"wait"}, 300.0)))
    thread.start()
    while not mark.exists():
        assert thread.is_alive()
        time.sleep(0.05)
    began = time.monotonic()
    os.kill(happens, signal.SIGKILL)
    thread.join()
    return got[0][1], time.monotonic() - began


def restart_site(trial: Federation, site: str) -> None:
    trial.end_site(site)
    trial.start_site(site)


@pytest.mark.parametrize("size", [0, 1, 250_000, 10_000_000])
def test_four_sites_give_back_what_they_were_sent(ready: NVFlarePipe, size: int) -> None:
    echo(ready, size)


def test_many_exchanges_in_a_row(ready: NVFlarePipe) -> None:
    for number in range(50):
        echo(ready, number)


def test_no_process_of_the_engine_has_torch_or_the_core(ready: NVFlarePipe, trial: Federation) -> None:
    for name in trial.kits:
        for pid in trial.engine_processes(name):
            assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()
    home = next(trial.environment.glob("lib/python3.*/site-packages")) / "undrift"
    assert sorted(p.name for p in home.iterdir() if p.name != "__pycache__") == ["__init__.py", "deploy"]


def test_250_megabytes_pass(ready: NVFlarePipe, trial: Federation) -> None:
    """With at most three times its size at a site and at the coordinator; bridge and relay hold pieces."""
    size = 250_000_000
    message = random.Random(1).randbytes(size)
    before = psutil.Process().memory_info().rss
    jobs = {n: [p for p in trial.engine_processes(n) if p != trial.daemons[n].process] for n in trial.kits}
    held = {pid: psutil.Process(pid).memory_info().rss for pids in jobs.values() for pid in pids}
    peak = dict.fromkeys([*held, os.getpid()], 0)
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            for pid in peak:
                peak[pid] = max(peak[pid], psutil.Process(pid).memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    [(_, answer)] = ready.call({"north": message}, 300.0)
    done.set()
    watcher.join()
    assert answer == message
    assert peak.pop(os.getpid()) - before < 2 * size  # beside the message itself
    assert all(seen - held[pid] < size for pid, seen in peak.items())
    [(_, there)] = ready.call({"north": b"peak"}, SOON)
    assert isinstance(there, bytes)
    assert size < int(there) < 3 * size  # a figure below would be no measurement


def test_a_site_process_that_is_killed_is_missed_at_once_and_back_without_a_new_job(
    ready: NVFlarePipe, trial: Federation
) -> None:
    answer, seconds = answer_while(ready, trial, "north", trial.processes["north"].pid)
    assert isinstance(answer, Failure)
    assert "the site process did not answer" in answer.reason
    assert seconds < 60  # of 300
    assert ready.calls.probe(["north"], SOON) == {"north": "no site process"}
    restart_site(trial, "north")
    echo(ready)


def test_an_engine_s_job_process_that_is_killed_at_a_site_is_back_after_a_roll(
    ready: NVFlarePipe, trial: Federation
) -> None:
    job = trial.engine_processes("south")[-1]
    assert job != trial.daemons["south"].process
    answer, seconds = answer_while(ready, trial, "south", job)
    assert isinstance(answer, Failure)
    assert seconds < 120  # of 300
    restart_site(trial, "south")
    assert ready.roll(within=90) == dict.fromkeys(SITES, "ready")
    echo(ready)


def test_an_engine_that_is_killed_at_a_site_is_back_after_a_roll(ready: NVFlarePipe, trial: Federation) -> None:
    daemon, *ending, job = trial.engine_processes("east")  # a job that was rolled away may not have ended yet
    for pid in (daemon, *ending):
        os.kill(pid, signal.SIGKILL)
    answer, seconds = answer_while(ready, trial, "east", job)
    assert isinstance(answer, Failure)
    assert seconds < 120  # of 300
    restart_site(trial, "east")
    assert ready.roll(within=120) == dict.fromkeys(SITES, "ready")
    assert trial.daemons["east"].process not in (None, daemon)
    echo(ready)


def test_the_server_that_is_killed_is_back_and_nobody_waits_for_the_deadline(
    ready: NVFlarePipe, trial: Federation
) -> None:
    daemon, *jobs = trial.engine_processes("coordinator")
    for pid in (daemon, *jobs):
        os.kill(pid, signal.SIGKILL)
    got = dict(ready.call(messages(10), 300.0))
    assert all(isinstance(answer, Failure) for answer in got.values())
    assert ready.open(within=180) == dict.fromkeys(SITES, "ready")
    assert trial.daemons["coordinator"].process not in (None, daemon)
    echo(ready)


def test_a_coordinator_that_starts_anew_begins_its_own_job(ready: NVFlarePipe, trial: Federation) -> None:
    ready.calls.hang_up()
    assert dict(ready.call({"north": b""}, SOON)) == {"north": Failure("the engine's job is not running")}
    assert ready.open(within=60) == dict.fromkeys(SITES, "ready")
    echo(ready)


# Strangers.


def server(trial: Federation) -> tuple[str, int]:
    return trial.plan.host, trial.plan.port


def greets(trial: Federation, context: ssl.SSLContext) -> bool:
    """Whether the server still speaks to whoever has shaken hands with it in this way."""
    try:
        with socket.create_connection(server(trial), 10) as plain, context.wrap_socket(plain) as secure:
            secure.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return bool(secure.recv(100))
    except (ssl.SSLError, ConnectionError):
        return False


def handshake(kit: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # it is the server that must refuse
    if kit is not None:
        context.load_cert_chain(kit / "startup" / "client.crt", kit / "startup" / "client.key")
    return context


def test_only_a_certificate_of_this_federation_is_let_in(ready: NVFlarePipe, trial: Federation, tmp_path: Path) -> None:
    other = kits.make(trial.plan, tmp_path / "other", trial.environment)
    stranger = kits.unpack(next(kit.path for kit in other if kit.name == "north"), tmp_path / "north")
    assert greets(trial, handshake(trial.kits["north"]))
    assert not greets(trial, handshake(None))
    assert not greets(trial, handshake(stranger))


# Signs a certificate for a kit's key with the authority's: python -c SIGN AUTHORITY KIT DAYS_FROM DAYS_TO
SIGN = """
import datetime, json, sys
from pathlib import Path
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
state = json.loads((Path(sys.argv[1]) / "cert.json").read_text())
root = x509.load_pem_x509_certificate(state["root_cert"].encode())
key = serialization.load_pem_private_key(state["root_pri_key"].encode(), None)
path, now = Path(sys.argv[2]) / "startup" / "client.crt", datetime.datetime.now(datetime.timezone.utc)
old = x509.load_pem_x509_certificate(path.read_bytes())
new = x509.CertificateBuilder().subject_name(old.subject).issuer_name(root.subject).public_key(old.public_key())
new = new.serial_number(x509.random_serial_number())
first, last = (now + datetime.timedelta(days=int(days)) for days in sys.argv[3:])
new = new.not_valid_before(first).not_valid_after(last)
for extension in old.extensions:
    new = new.add_extension(extension.value, extension.critical)
path.write_bytes(new.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
"""


def test_an_expired_certificate_of_this_federation_is_not_let_in(
    ready: NVFlarePipe, trial: Federation, tmp_path: Path
) -> None:
    authority = trial.packed[0].path.parent / "authority"
    for name, days, welcome in (("valid", ("-2", "1"), True), ("expired", ("-2", "-1"), False)):
        kit = shutil.copytree(trial.kits["north"], tmp_path / name, ignore=shutil.ignore_patterns("*.sock"))
        words = [trial.environment / "bin" / "python", "-c", SIGN, authority, kit, *days]
        subprocess.run(words, check=True, env=engine.environment(trial.environment))
        assert greets(trial, handshake(kit)) == welcome, name


def test_a_site_that_claims_another_s_name_is_not_let_in(ready: NVFlarePipe, trial: Federation, tmp_path: Path) -> None:
    packed = next(kit.path for kit in trial.packed if kit.name == "north")
    kit = kits.unpack(packed, tmp_path / "north")
    for name in ("sub_start.sh", "fed_client.json"):
        path = kit / "startup" / name
        text = path.read_text()
        assert "north" in text
        path.write_text(text.replace("north", "south"))
    log = trial.kits[kits.COORDINATOR] / "engine.log"
    before, until = log.stat().st_size, time.monotonic() + 90
    with engine.Daemon(kit, trial.environment):
        while b"authenticated as 'north' but claimed endpoint 'south'" not in log.read_bytes()[before:]:
            assert time.monotonic() < until, (kit / "engine.log").read_text()[-2000:]
            time.sleep(0.2)  # there is no event to wait for in another process's file
        assert b"Successfully registered" not in (kit / "engine.log").read_bytes()
    echo(ready)  # and the true one was not disturbed


def submit(pipe: NVFlarePipe, job: Path) -> str:
    """Submit a job as the coordinator's administrator; what became of it."""
    answer = pipe._admin.ask({"do": "submit", "job": str(job)})
    if "failed" in answer:
        return str(answer["failed"])
    until = time.monotonic() + 60
    status = ""
    while time.monotonic() < until and not status.startswith(("FINISHED", "FAILED", "ABORTED")):
        time.sleep(0.5)
        status = str(pipe._admin.ask({"do": "status", "job": answer["ok"]}).get("ok"))
    return status


def test_a_job_that_carries_code_is_refused(ready: NVFlarePipe, trial: Federation, tmp_path: Path) -> None:
    write_job(tmp_path / "job", "token")
    (tmp_path / "job" / "app" / "custom").mkdir()
    (tmp_path / "job" / "app" / "custom" / "evil.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')")
    config = tmp_path / "job" / "app" / "config" / "config_fed_client.json"
    config.write_text(config.read_text().replace(kits.RELAY, "evil.Evil"))
    assert submit(ready, tmp_path / "job").startswith(("FAILED", "FINISHED:FAILED_TO_RUN"))
    assert not (tmp_path / "mark").exists()
    echo(ready)


@pytest.mark.parametrize("name", ["subprocess.Popen", "nvflare.app_common.np.np_trainer.NPTrainer", kits.BRIDGE])
def test_a_class_that_is_not_the_relay_is_not_run_at_a_site(
    ready: NVFlarePipe, trial: Federation, tmp_path: Path, name: str
) -> None:
    ready.calls.hang_up()
    write_job(tmp_path / "job", ready.calls.token)  # the true token, so that only the class is wrong
    config = tmp_path / "job" / "app" / "config" / "config_fed_client.json"
    content = json.loads(config.read_text())
    args = {"args": ["touch", str(tmp_path / "mark")]} if name.startswith("subprocess") else {}
    content["executors"][0]["executor"] = {"path": name, "args": args}
    config.write_text(json.dumps(content))
    submit(ready, tmp_path / "job")
    logs = "".join(path.read_text() for site in SITES for path in trial.kits[site].glob("*/log.txt"))
    assert f"Component '{name}'" in logs
    assert "is not in allow_list" in logs
    assert not (tmp_path / "mark").exists()


def test_the_administrator_has_no_shell_and_cannot_stop_a_site(ready: NVFlarePipe, trial: Federation) -> None:
    before = trial.daemons["north"].process
    program = (
        "import sys; from undrift.deploy.admin import Desk; from pathlib import Path\n"
        "desk = Desk(Path(sys.argv[1])); desk.answer({'do': 'sites'}); s = desk.session\n"
        "import time\n"
        "while any(job['status'] == 'RUNNING' for job in s.list_jobs()): time.sleep(0.2)\n"
        "for command in sys.argv[2:]:\n"
        "    try:\n"
        "        print(command, '->', s._do_command(command, enforce_meta=False))\n"
        "    except Exception as error:\n"
        "        print(command, '->', type(error).__name__, error)\n"
        "desk.close()\n"
    )
    ready.calls.hang_up()  # a running job alone would keep the engine from shutting down
    commands = ["ls north", "cat north local/resources.json", "shutdown client north", "restart client north"]
    done = subprocess.run(
        [trial.environment / "bin" / "python", "-c", program, trial.kits["coordinator"] / "admin", *commands],
        env=engine.environment(trial.environment),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )
    lines = [line for line in done.stdout.splitlines() if " -> " in line]
    assert len(lines) == 4, done
    for line in lines:  # the last two are refused by the site, which NVFlare's server reports in words of its own
        assert "not authorized" in line.lower() or "failed to shut down all clients" in line, line
    received = (trial.kits["north"] / "audit.log").read_text()
    assert "train.shutdown" in received
    assert "train.restart" in received
    assert trial.daemons["north"].process == before
    assert ready.open(within=60) == dict.fromkeys(SITES, "ready")


def test_a_second_daemon_of_one_kit_is_refused(ready: NVFlarePipe, trial: Federation) -> None:
    with pytest.raises(Exception, match="is running already"):
        engine.Daemon(trial.kits["north"], trial.environment)


def test_nothing_of_the_federation_lies_where_others_can_read_it(ready: NVFlarePipe, trial: Federation) -> None:
    for kit in trial.kits.values():
        for path in kit.rglob("*"):
            if path.is_file() and path.name.endswith((".key", ".log", ".json", ".txt")):
                assert path.stat().st_mode & 0o077 == 0, path
    assert (trial.kits["coordinator"] / "server" / "store" / "jobs").is_dir()  # and not in /tmp
