"""Three sites that keep their data, and a coordinator that holds none: the same code as over TLS, in one process.

Every site has a policy of its own. What the sites compute together is what the rehearsal computes, to the last bit.
Over the network: docs/deploy.md.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from undrift.deploy.journal import Journal, entries
from undrift.deploy.pipe import Direct
from undrift.deploy.policy import Policy
from undrift.deploy.site import Site
from undrift.experiment.deployed import Installed
from undrift.experiment.description import read_toml
from undrift.experiment.execute import execute
from undrift.experiment.federate import Federated, federate, rehearsal
from undrift.experiment.prepare import prepare_experiment
from undrift.experiment.recorder import InMemory
from undrift.experiment.sitedata import held
from undrift.ledger.store import Ledger

NAMES = ["coast", "north", "south"]
EXPERIMENT = """
name = "wards"
rounds = 8

[algorithm]
name = "fedtrip"

[model]
name = "mlp"
"""

with tempfile.TemporaryDirectory() as temporary:
    folder = Path(temporary)
    file = folder / "wards.toml"
    file.write_text(EXPERIMENT, encoding="utf-8")

    sites = []
    for number, name in enumerate(NAMES, 1):
        data, _ = held({"data": {"name": "digits"}, "part": {"number": number, "of": len(NAMES)}}, name)
        sites.append(Site(folder / name, name, data, Policy(experiments=("wards",)), Installed()))

    pipe = Direct({site.name: site.answer for site in sites})
    with Ledger(folder / "ledger.sqlite", create=True) as ledger:
        journal = Journal(folder / "journal.jsonl")
        together = federate(Federated.load(file), pipe, NAMES, ledger, journal)
        journal.close()
    for site in sites:
        site.close()
    print(together)
    print(len(list(entries(folder / "journal.jsonl"))), "entries in the coordinator's journal")

    prepared = prepare_experiment(rehearsal(read_toml(file), len(NAMES), str(file)))
    alone = execute(prepared, InMemory(prepared))

pairs = zip(together.module.parameters(), alone.module.parameters(), strict=True)
same = all(torch.equal(a, b) for a, b in pairs)
print("the rehearsal has the same bits:", same)
assert same
