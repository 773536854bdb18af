"""The partition that the data bring along."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from undrift.core import rng
from undrift.data.partitions.base import Division, Ints, Partitioner


class Column(Partitioner):
    """The data set's own clients: subject, patient, hospital or any column."""

    name = "column"
    natural = True
    group: Annotated[bool, "with fewer clients than names: deal the names out; false: refuse"] = False

    def assign(self, p: Division) -> tuple[Ints, Ints]:
        assert p.natural is not None
        names, owners = np.unique(p.natural, return_inverse=True)
        owners = owners.reshape(-1)
        if p.clients > len(names) or (p.clients < len(names) and not self.group):
            hint = "leave clients out or set group" if p.clients < len(names) else "leave clients out"
            raise p.infeasible(f"the data set names {len(names)} clients, not {p.clients}: {hint}")
        if p.clients < len(names):
            place = np.empty(len(names), np.int64)
            place[rng.permutation(p.key("groups"), len(names))] = np.arange(len(names)) % p.clients
            owners = place[owners]
            p.notes["groups"] = [[str(n) for n in names[place == g].tolist()] for g in range(p.clients)]
        else:
            p.names = names
        return owners, np.arange(p.samples)
