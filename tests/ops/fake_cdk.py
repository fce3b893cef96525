"""A cdk for the PATH that deploys nothing: it does to a made-up world what the test wrote down for the zone.

`plan.json` beside it says for each zone: exit code, what stacks then stand, and the events of those that failed.
"""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent


def main(arguments):
    with (HERE / "calls.jsonl").open("a") as log:
        log.write(json.dumps(arguments) + "\n")
    overrides = next((a for a in arguments if a.startswith("set=")), "")
    zone = re.findall(r"network\.zone=([\w-]+)", overrides)[-1:]
    region = zone[0][:-1] if zone else "us-east-2"
    world = json.loads((HERE / "world.json").read_text())
    if arguments[0] == "destroy":
        world["stacks"] = {name: s for name, s in world["stacks"].items() if not name.startswith(region)}
        step = {}
    else:
        step = json.loads((HERE / "plan.json").read_text()).get(zone[0] if zone else "", {})
    if step.get("hangs"):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        (HERE / "started").write_text(str(child.pid))
        time.sleep(60)
    for stack, status in step.get("stacks", {}).items():
        world["stacks"][f"{region}/{stack}"] = status
    for stack, events in step.get("events", {}).items():
        told = world["events"].setdefault(f"{region}/{stack}", [])
        told.extend([f"event-{zone[0]}-{len(told) + n}", *event] for n, event in enumerate(events))
    (HERE / "world.json").write_text(json.dumps(world))
    print(f"cdk {arguments[0]}: {step.get('says', 'done')}", flush=True)
    return step.get("exit", 0)


sys.exit(main(sys.argv[1:]))
