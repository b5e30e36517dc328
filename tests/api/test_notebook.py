"""In a notebook a loop is running: `run` and `arun` play there, and an interrupt of the kernel stops in good order."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

from tests.cli.lab import ROOT, Lab, environ, experiment
from tests.patience import run

pytestmark = pytest.mark.ci

NOTEBOOK = ROOT / "examples" / "analysis.ipynb"

# Kernels listen at sockets in the working directory: a port that was free may be taken when the kernel comes to it.
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
from traitlets.config import Config
notebook = nbformat.read(sys.argv[1], as_version=4)
config = Config(KernelManager={"transport": "ipc"})
NotebookClient(notebook, timeout=600, kernel_name="python3", config=config).execute()
nbformat.write(notebook, "executed.ipynb")
"""

INTERRUPT = """
import json, sys
from pathlib import Path
from jupyter_client.manager import KernelManager
from tests.patience import LIMIT_S, wait_for

manager = KernelManager(kernel_name="python3", transport="ipc")
manager.start_kernel()
client = manager.client()
client.start_channels()
try:
    client.wait_for_ready(timeout=LIMIT_S)
    def cell(code):
        outputs = []
        client.execute_interactive(
            code, timeout=LIMIT_S, output_hook=lambda message: outputs.append(message["content"])
        )
        return outputs

    cell("import json, mac_runner; from tests.sim.held_run import hold")
    cell("experiment = json.load(open('experiment.json'))")
    for call, directory in zip(sys.argv[1::2], sys.argv[2::2]):
        cell("held = hold(5); held.__enter__()")
        # Or the kernel could give up the next cell unplayed, as one that was queued behind the failed one.
        waiting = client.execute(call, stop_on_error=False)
        events = Path(directory, "events.jsonl")
        wait_for(lambda: events.exists() and events.read_text().count("EVENT_INFER_DONE") >= 5, "five replies")
        manager.interrupt_kernel()
        while (reply := client.get_shell_msg(timeout=LIMIT_S))["parent_header"]["msg_id"] != waiting:
            pass
        print(reply["content"]["status"], reply["content"].get("ename"))
        cell("held.__exit__(None, None, None)")
        found = cell(f"view = {call}\\nprint(view.summary['conversations'])")
        print("".join(output["text"] for output in found if output.get("name") == "stdout"), end="")
        print("".join(f"{output['ename']}: {output['evalue']}" for output in found if "ename" in output), end="")
finally:
    client.stop_channels()
    manager.shutdown_kernel(now=True)
"""


def _python(lab: Lab, program: str, *arguments: str) -> str:
    """What a program prints; a warning of a library is no error here."""
    env = environ({"PYTHONWARNINGS": "ignore", "HOME": str(lab.path)})
    told = run(
        [sys.executable, "-c", program, *arguments],
        cwd=lab.path,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert told.returncode == 0, told.stderr
    return told.stdout


def test_interrupt_of_a_cell_stops_in_good_order_and_the_same_cell_goes_on(lab: Lab) -> None:
    """A kernel cancels a cell that awaits, and interrupts another one."""
    (lab.path / "experiment.json").write_text(json.dumps(experiment()))
    calls = [
        f"{call}(experiment, out='runs/{call[-4:]}', progress=False)"
        for call in ("mac_runner.run", "await mac_runner.arun")
    ]
    places = [lab.run_dir(name) for name in (".run", "arun")]

    told = _python(lab, INTERRUPT, *chain(*zip(calls, (str(one.path) for one in places), strict=True)))

    summary = "{'planned': 2, 'finished': 2, 'failed': 0}"
    assert told.splitlines() == ["error KeyboardInterrupt", summary, "error CancelledError", summary]
    for place in places:
        first, second = place.events("EVENT_RUN_STOP")
        assert (first["is_complete"], first["cancelled_requests"], second["is_complete"]) == (False, 0, True)
        lab.verified(place.path)


def test_notebook_of_the_examples_runs_and_is_kept_without_outputs(lab: Lab) -> None:
    kept = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in kept["cells"])

    _python(lab, EXECUTE, str(NOTEBOOK))

    played = json.loads((lab.path / "executed.ipynb").read_text(encoding="utf-8"))
    outputs = [output for cell in played["cells"] for output in cell.get("outputs", [])]
    kinds = {kind for output in outputs for kind in output.get("data", {})}
    text = json.dumps(outputs)
    assert {"text/html", "image/png"} <= kinds
    assert "{'planned': 20, 'finished': 20, 'failed': 0}" in text
    for word in ("low", "lies", "mafia", "replied:"):
        assert word in text
    assert Path(lab.path / "runs" / "analysis" / "summary.json").exists()
