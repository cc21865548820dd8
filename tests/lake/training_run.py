"""Train on a set as far as a loader is concerned: note the rows of each batch, then where the run is, and say so.

It runs in a process of its own, which may be killed at any moment, with tests/conformance/stand_in on PYTHONPATH.
Its argument is JSON: `url`, `name` of the set, `folder` of its notes, `workers`, `options` of the loader, and `hold`,
behind how many batches it waits to be killed (0: never).
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from pathlib import Path

from torch.utils.data import DataLoader  # type: ignore[import-not-found]  # the stand-in

import tiltyard


def main() -> None:
    request = json.loads(sys.argv[1])
    rows, state = Path(request["folder"]) / "rows", Path(request["folder"]) / "state"
    loader = tiltyard.connect(request["url"]).training_set(request["name"]).loader(**request["options"])
    lines: list[str] = []
    if state.exists():
        saved = json.loads(state.read_text())
        loader.load_state_dict(saved["state"])
        lines = rows.read_text().splitlines()[: saved["batches"]]
    rows.write_text("".join(f"{line}\n" for line in lines))
    multiprocessing.set_forkserver_preload(["tiltyard.lake.training.torch_loader"])
    batches = DataLoader(loader, batch_size=None, num_workers=request["workers"], multiprocessing_context="forkserver")
    with rows.open("a") as notes:
        for number, batch in enumerate(batches, 1):
            notes.write(f"{json.dumps(batch['id'].numpy().tolist())}\n")
            notes.flush()
            position = loader.state_dict(number) if request["workers"] else loader.state_dict()
            new = state.with_suffix(".new")
            new.write_text(json.dumps({"state": position, "batches": len(lines) + number}))
            new.replace(state)
            pids = [child.pid for child in multiprocessing.active_children()]
            sys.stdout.write(f"{json.dumps({'batch': number, 'workers': pids})}\n")
            sys.stdout.flush()
            if number == request["hold"]:
                time.sleep(600)


if __name__ == "__main__":
    main()
