"""Commands to NVFlare's server, one JSON object a line, for a coordinator that has no NVFlare in its environment.

    python -m undrift.deploy.admin KIT        in the engine's environment
    {"do": "submit", "job": FOLDER}           -> {"ok": JOB}
    {"do": "status", "job": JOB}              -> {"ok": "RUNNING"}
    {"do": "abort", "job": JOB}               -> {"ok": null}
    {"do": "sites"}                           -> {"ok": {NAME: SECONDS_SINCE_1970 of its last sign of life}}

and ``{"failed": reason}`` to any of them. It logs in when it must; after a failure it logs in anew, but repeats
nothing: whether a lost submission arrived is for the caller to find out. It ends with its standard input.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from nvflare.fuel.flare_api.flare_api import Session, new_secure_session

COMMAND_SECONDS = 20.0
LOGIN_SECONDS = 10.0


class Desk:
    """Answers commands over one session."""

    def __init__(self, kit: Path) -> None:
        self.kit = kit
        self.user = json.loads((kit / "startup" / "fed_admin.json").read_text())["admin"]["username"]
        self.session: Session | None = None

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"ok": self._do(command)}
        except Exception as error:  # NVFlare's errors have no common kind
            self.close()
            return {"failed": f"{type(error).__name__}: {error}"}

    def _do(self, command: dict[str, Any]) -> Any:
        if self.session is None:
            self.session = new_secure_session(
                self.user, str(self.kit), timeout=LOGIN_SECONDS, auto_login_max_tries=1, command_timeout=COMMAND_SECONDS
            )
        match command["do"]:
            case "submit":
                return self.session.submit_job(command["job"])
            case "status":
                return self.session.get_job_meta(command["job"])["status"]
            case "abort":
                return self.session.abort_job(command["job"])
            case "sites":
                clients = self.session.get_system_info().client_info
                return {client.name: client.last_connect_time for client in clients}
            case other:
                raise ValueError(f"unknown command {other!r}")

    def close(self) -> None:
        session, self.session = self.session, None
        if session is not None:
            with suppress(Exception):  # it was broken
                session.close()


def main(kit: str) -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # NVFlare prints; what it prints is no reply
    desk = Desk(Path(kit))
    for line in sys.stdin:
        replies.write(json.dumps(desk.answer(json.loads(line))) + "\n")
        replies.flush()
    desk.close()


if __name__ == "__main__":
    main(sys.argv[1])
