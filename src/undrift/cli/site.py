"""Commands of a site's operator: site check, start, install, approve, log."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from undrift.cli.common import JsonOption, RootOption, console, say
from undrift.cli.deploy import as_table, ended_by_term, in_sentences, opened, shown
from undrift.cli.flags import ExperimentCommand, as_changes, given
from undrift.cli.showing import print_json
from undrift.core.errors import InvalidInput, unknown
from undrift.data import SOURCES, Dataset
from undrift.deploy import engine, flower_pipe, kits
from undrift.deploy.engine import Daemon
from undrift.deploy.journal import entries, verify
from undrift.deploy.pipe import Answers, socket_file
from undrift.deploy.policy import Approvals, Policy, write
from undrift.deploy.site import Site
from undrift.deploy.wire import Broken
from undrift.experiment.deployed import Installed
from undrift.experiment.description import read_toml
from undrift.experiment.sitedata import held

app = typer.Typer(no_args_is_help=True, help="A site of a federation: its data stay here.")

SiteKit = Annotated[Path, typer.Argument(metavar="KIT", help="The site's kit: the folder, or the archive.")]

POLICY = """\
# What this site allows. It is read when the site starts; nobody else can change it.
experiments = "ask"          # "ask": only what `undrift site approve` has approved; "any"; or a list of names
smallest_cohort = 2          # sites whose mean is taken, at least
largest_rounds = 1000        # of an experiment
smallest_count = 10          # test samples behind a figure that is told, at least
class_counts = false         # may the coordinator know how many samples of each class there are?
holdings = false             # may `undrift deploy status` tell how many samples there are, outside any experiment?

# [methods]                  # left out: all that are installed
# fedavg = "any"             # this method, whatever its file says
# scaffold = "5d1f..."       # this method, as long as its installed file has this SHA-256
"""

UNIT = """\
[Unit]
Description=undrift site {name} of {federation}
Wants=network-online.target
After=network-online.target

[Service]
ExecStart={command} site start {kit}
Restart=always
RestartSec=5
UMask=0077
NoNewPrivileges=yes
PrivateTmp=yes
Environment=UNDRIFT_ENGINE={engine}

[Install]
WantedBy=default.target
"""


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="site")


@app.command(cls=ExperimentCommand)
def check(
    ctx: typer.Context,
    kit: Annotated[Path | None, typer.Argument(metavar="[KIT]", help="Remember the data in this kit.")] = None,
    data: Annotated[str, typer.Option("--data", "-d", help="The data set: csv, npz, images, ...")] = "csv",
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Look at the data of this site without sending anything: what it holds, and what would be told of it.

    undrift site check north --data csv --path visits.csv --label outcome
    """
    kit = None if kit is None else opened(kit, "site")
    place = None if kit is None else kit / "site.toml"
    if given(ctx) or place is None or not place.exists():
        if data not in SOURCES:
            raise unknown("data set", data, SOURCES)
        changes = as_changes(given(ctx), {"data": [data]})
        if set(changes) - {"data"}:
            raise InvalidInput("only settings of the data have a place here")
        values: dict[str, Any] = {"data": {"name": data, **changes.get("data", {})}}
        if "path" in values["data"]:
            values["data"]["path"] = str(Path(values["data"]["path"]).expanduser().resolve())
    else:
        values = read_toml(place)
        place = None
    _, dataset = held(values, "the data", root)
    policy = Policy.read(kit / "policy.toml") if kit is not None else Policy()
    rows = _facts(dataset, policy)
    if as_json:
        print_json(dict(rows))
    else:
        as_table([(name, shown(value)) for name, value in rows])
    if place is not None and kit is not None:
        write(place, _toml(values).encode())
        if not (kit / "policy.toml").exists():
            write(kit / "policy.toml", POLICY.encode())
        if not as_json:
            say(f"Remembered in {escape(str(place))}; the rules are in {escape(str(kit / 'policy.toml'))}.")
            say(f"`undrift site start {escape(str(kit))}` takes part.")


def _facts(dataset: Dataset, policy: Policy) -> list[tuple[str, Any]]:
    counts = None if dataset.classes is None else dataset.y.bincount(minlength=dataset.classes).tolist()
    told = ["the number of samples", "their shape", "the names of the classes", "a hash of the data"]
    told += ["the number of samples of each class"] if policy.class_counts else []
    least = policy.smallest_count
    return [
        ("data", dataset.name),
        ("training samples", len(dataset.x)),
        ("test samples", len(dataset.x_test)),
        ("shape of a sample", "x".join(map(str, dataset.shape))),
        ("classes", "none: numbers" if counts is None else list(dataset.class_names) or len(counts)),
        ("samples of each class", counts if counts is not None else "-"),
        ("would be told", "; ".join(told)),
        (
            "with every round",
            f"the upload of the method; how many of {least} or more test samples the model gets right",
        ),
        ("never leaves", "samples, labels, and what a method keeps at this site"),
    ]


def _toml(values: dict[str, Any]) -> str:
    lines = []
    for section, inner in values.items():
        lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in inner.items()), ""]
    return "\n".join(lines)


@app.command()
def start(
    kit: SiteKit,
    root: RootOption = None,
    flower: Annotated[bool, typer.Option("--flower", help="A SuperNode of yours carries the messages.")] = False,
) -> None:
    """Take part: answer the coordinator until stopped. Reconnects by itself, and logs in plain sentences."""
    kit = opened(kit, "site")
    about = kits.about(kit)
    path = kit / "site.toml"
    if not path.exists():
        raise InvalidInput(f"{kit} does not know its data: `undrift site check {kit} --data ...` looks at them first")
    data, _ = held(read_toml(path), str(path), root)
    policy = Policy.read(kit / "policy.toml")
    place = None if flower else engine.place()
    if place is None:
        engine.seed(flower_pipe.place())
    else:
        engine.check(place)
    with contextlib.ExitStack() as stack:
        stack.enter_context(in_sentences(logging.INFO))
        stack.enter_context(ended_by_term())
        # Of a daemon there is one for a kit: nobody else uses what follows. The socket says so where there is none.
        daemon = None if place is None else Daemon(kit, place)
        site = Site(kit, str(about["name"]), data, policy, Installed())
        stack.callback(site.close)
        stack.enter_context(_answers(kit, site))
        if daemon is not None:
            stack.enter_context(daemon)
        by = f"the coordinator at {about['host']}:{about['port']}" if daemon else "whatever the SuperNode brings"
        say(
            f"Site {escape(site.name)} of {escape(str(about['federation']))}: {len(data.x)} samples. "
            f"It answers {escape(by)}; Ctrl-C ends it."
        )
        while True:
            signal.pause()


def _answers(kit: Path, site: Site) -> Answers:
    try:
        return Answers(socket_file(kit), site.answer)
    except Broken as error:
        raise InvalidInput(str(error)) from None


@app.command()
def install(
    kit: SiteKit,
    print_only: Annotated[bool, typer.Option("--print", help="Print the unit and write nothing.")] = False,
) -> None:
    """Write a systemd unit, so that the site is started with the machine and whenever it ends."""
    kit = opened(kit, "site")
    about = kits.about(kit)
    command = shutil.which("undrift") or f"{sys.executable} -m undrift"
    text = UNIT.format(
        name=about["name"], federation=about["federation"], command=command, kit=kit.resolve(), engine=engine.place()
    )
    if print_only:
        console.print(text, end="", markup=False, soft_wrap=True)
        return
    unit = Path.home() / ".config" / "systemd" / "user" / f"undrift-{about['name']}.service"
    unit.parent.mkdir(parents=True, exist_ok=True)
    unit.write_text(text, encoding="utf-8")
    say(f"Wrote {escape(str(unit))}. Start it now and with the machine:")
    say(f"  systemctl --user enable --now {unit.name} && loginctl enable-linger")


@app.command()
def approve(
    kit: SiteKit,
    key: Annotated[str | None, typer.Argument(metavar="[KEY]", help="What to approve; left out: list.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the experiments that wait for approval, or approve one of them by the beginning of its key."""
    kit = opened(kit, "site")
    approvals = Approvals(kit / "approvals")
    asked = approvals.asked()
    if key is not None:
        found = [k for k in asked if k.startswith(key)]
        if len(found) != 1:
            what = "several begin" if found else "nothing that was asked for begins"
            raise InvalidInput(f"{what} with {key!r}: {', '.join(asked) or 'nothing was asked for'}")
        approvals.approve(found[0])
        say(f"Approved {found[0]}: {escape(_sentence(asked[found[0]]))}")
        return
    if as_json:
        print_json([{"key": k, "approved": approvals.approved(k), **asked[k]} for k in asked])
        return
    for k, value in asked.items():
        state = "[green]approved[/]" if approvals.approved(k) else "[yellow]waits[/]"
        say(f"{k}  {state}  {escape(_sentence(value))}")
    if not asked:
        say("Nothing was asked for.")


def _sentence(asked: dict[str, Any]) -> str:
    experiment = asked["experiment"]
    method = dict(experiment["algorithm"])
    name = method.pop("name")
    settings = ", ".join(f"{key}={value}" for key, value in method.items())
    return (
        f"{experiment['name']}: {name} ({settings}), file {asked['file'][:16]}, {experiment['rounds']} rounds, "
        f"{experiment['cohort']} or more of {experiment['sites']} sites"
    )


@app.command()
def log(
    kit: SiteKit,
    check_it: Annotated[bool, typer.Option("--verify", help="Check that no line was changed.")] = False,
    last: Annotated[int, typer.Option("--last", min=1, help="How many lines to show.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """What this site was asked and what it answered; `--verify` checks the chain from its beginning."""
    kit = opened(kit, "site")
    path = kit / "journal.jsonl"
    if check_it:
        found = verify(path)
        say(f"{found.lines} lines, none of them changed; the last has the hash {found.head}.")
        return
    lines = list(entries(path))[-last:]
    if as_json:
        print_json(lines)
        return
    for line in lines:
        rest = {k: v for k, v in line.items() if k not in ("line", "at", "what", "before", "told", "experiment")}
        words = ", ".join(f"{k} {shown(v)[:20]}" for k, v in rest.items())
        say(f"{line['at'][:19]}  [bold]{escape(line['what'])}[/]  {escape(words)}")
