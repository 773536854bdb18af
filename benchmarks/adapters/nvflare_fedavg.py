"""NVFlare's own FedAvg recipe with NumPy, played by its own proof-of-concept environment: server and sites over TLS.

    python nvflare_fedavg.py BYTES ROUNDS SITES FOLDER

prints the seconds from one global model to the next, as a site sees them, as JSON. The sites send back what they get.
"""

from __future__ import annotations

import json
import os
import sys
from itertools import pairwise
from pathlib import Path

SIZE, ROUNDS, SITES, FOLDER = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]).resolve()
os.environ |= {"HOME": str(FOLDER), "NVFLARE_POC_WORKSPACE": str(FOLDER / "poc")}  # read on import

import numpy as np  # noqa: E402
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe  # noqa: E402
from nvflare.recipe import PocEnv  # noqa: E402

SCRIPT = f"""
import time
import nvflare.client as flare
flare.init()
while flare.is_running():
    model = flare.receive()
    if model is None:
        break
    with open({str(FOLDER)!r} + "/" + flare.get_site_name() + ".seconds", "a") as file:
        file.write(str(time.time()) + "\\n")  # NVFlare has put a print of its own in the place of Python's
    flare.send(flare.FLModel(params=model.params, params_type=model.params_type))
"""


def main() -> None:
    script, start = FOLDER / "train.py", FOLDER / "start.npy"
    script.write_text(SCRIPT, encoding="utf-8")
    np.save(start, np.random.default_rng(0).standard_normal(SIZE // 4, dtype=np.float32))
    os.chdir(FOLDER)
    recipe = NumpyFedAvgRecipe(
        name="exchange", initial_ckpt=str(start), min_clients=SITES, num_rounds=ROUNDS, train_script=script.name
    )
    environment = PocEnv(num_clients=SITES)
    try:
        recipe.execute(environment).get_result(timeout=600)
        times = [float(line) for line in (FOLDER / "site-1.seconds").read_text(encoding="utf-8").split()]
    finally:
        environment.stop(clean_up=True)
    print(json.dumps([later - earlier for earlier, later in pairwise(times)]))


if __name__ == "__main__":
    main()
