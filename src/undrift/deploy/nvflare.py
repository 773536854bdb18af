"""NVFlare as a pipe: the two classes that its job processes run. Imported in the engine's environment only.

A job is two configuration files that name these classes; no code travels with it. Both use NVFlare's aux channel: a
request to a site's job process and its reply, over mutual TLS, with a payload per site and no polling. Where the
coordinator or the site process listens is said by the kit on that machine, not by the job: whoever can submit a job
can start these two classes and nothing else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from undrift.deploy import bridge, relay
from undrift.deploy.pipe import socket_file
from undrift.deploy.wire import Broken, Failed

TOPIC = "undrift"
CONTENT = "undrift"  # the key under which a request or a reply travels


class Bridge(Controller):  # type: ignore[misc]  # NVFlare has no types
    """The server's workflow: serves the coordinator until it hangs up or the job is ended."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self.token = token

    def start_controller(self, fl_ctx: FLContext) -> None:
        pass

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        engine = fl_ctx.get_engine()
        kit = Path(engine.get_workspace().get_root_dir())

        def ask(site: str, request: relay.Request, seconds: float) -> relay.Reply | None:
            if engine.get_client_from_name(site) is None:
                raise Failed(bridge.LEFT_OUT)
            with engine.new_context() as context:  # a context belongs to one thread
                message = Shareable({CONTENT: request})
                replies = engine.send_aux_request([site], TOPIC, message, seconds, context, optional=True)
            reply = (replies or {}).get(site)
            if not isinstance(reply, Shareable) or reply.get_return_code() != ReturnCode.OK:
                return None
            content = reply.get(CONTENT)
            return content if isinstance(content, dict) else None

        try:
            bridge.Bridge(socket_file(kit), self.token, ask).run(lambda: abort_signal.triggered)
        except Broken as error:
            self.system_panic(f"no coordinator to serve: {error}", fl_ctx)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        pass

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        pass

    def process_task_check(self, task: ClientTask, fl_ctx: FLContext) -> None:
        pass


class Relay(Executor):  # type: ignore[misc]
    """A site's executor: takes requests of the bridge to the site process. It executes no tasks."""

    def __init__(self) -> None:
        super().__init__()
        self._relay: relay.Relay | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.START_RUN:
            engine = fl_ctx.get_engine()
            self._relay = relay.Relay(socket_file(Path(engine.get_workspace().get_root_dir())))
            engine.register_aux_message_handler(TOPIC, self._handle)
        elif event_type == EventType.END_RUN and self._relay is not None:
            self._relay.close()

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        return make_reply(ReturnCode.TASK_UNKNOWN)

    def _handle(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        content: Any = request.get(CONTENT)
        reply = make_reply(ReturnCode.OK)
        if self._relay is None or not isinstance(content, dict):
            return make_reply(ReturnCode.BAD_REQUEST_DATA)
        reply[CONTENT] = self._relay.handle(content)
        return reply
