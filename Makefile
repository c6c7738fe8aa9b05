# Every target sets up what it needs. A machine with Python 3.11 and Debian's apt is enough.
PYTHON ?= python3
BIN := .venv/bin
# Byte code is kept: the tests start many processes.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: venv constraints hooks postgres slurm ray skypilot packages demo test test-more test-fleets check warm wheel snapshots soak bench bench-quick clean

venv: .venv/.ready

.venv/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { apt-get update -q && apt-get install -y -q python3-venv; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# After `make test` passed with newer versions: these are installed from now on, so that a release of a
# library cannot break the tests of a tree that has not changed.
constraints: venv
	@{ sed -n '/^#/p' constraints.txt; $(BIN)/python -m pip freeze --exclude-editable --exclude duetune \
		| sed 's/+cpu//' | sort -f; } > constraints.new && mv constraints.new constraints.txt

# Lint, format and types before every commit.
hooks: venv
	@$(BIN)/pre-commit install

# Tests start a server of their own; where PostgreSQL cannot be installed they skip, and say so.
postgres:
	@command -v pg_ctl >/dev/null 2>&1 || ls /usr/lib/postgresql/*/bin/pg_ctl >/dev/null 2>&1 \
		|| { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends postgresql; } >/dev/null 2>&1 \
		|| echo "PostgreSQL is not here and cannot be installed; its tests will skip"

# Tests start a cluster of their own; where Slurm cannot be installed they skip, and say so.
slurm:
	@{ command -v sbatch && command -v munged && command -v slurmctld && command -v slurmd; } >/dev/null 2>&1 \
		|| { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends slurm-wlm munge; } >/dev/null 2>&1 \
		|| echo "Slurm is not here and cannot be installed (apt-get install slurm-wlm munge); its tests will skip"

# Tests start a cluster of their own; where Ray cannot be installed they skip, and say so.
ray: venv
	@$(BIN)/python -c 'import ray' 2>/dev/null \
		|| $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt ray \
		|| echo "Ray is not here and cannot be installed; its tests will skip"

# In an environment of its own, as its dependencies are many. Tests start its server and let it use
# the Slurm cluster of the tests by ssh; where that cannot be installed they skip, and say so.
skypilot: slurm
	@{ command -v sshd || test -x /usr/sbin/sshd; } >/dev/null 2>&1 && command -v rsync >/dev/null 2>&1 \
		|| { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends openssh-server openssh-client rsync; } >/dev/null 2>&1 \
		|| echo "sshd and rsync are not here and cannot be installed; the tests of SkyPilot will skip"
	@{ test -x .venv-skypilot/bin/sky && test -x .venv-skypilot/bin/uv; } \
		|| { $(PYTHON) -m venv .venv-skypilot && .venv-skypilot/bin/python -m pip install -q --disable-pip-version-check -e '.[skypilot]' 'skypilot[slurm]' uv; } \
		|| echo "SkyPilot is not here and cannot be installed; its tests will skip"

# One after the other: apt works for one at a time.
packages:
	@$(MAKE) --no-print-directory postgres
	@$(MAKE) --no-print-directory slurm
	@$(MAKE) --no-print-directory ray

demo: venv
	@examples/demo/run.sh $(BIN)

check: venv
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

# What every process of the tests would otherwise do anew, and all at the same time.
warm: venv
	@$(BIN)/python -m compileall -q src
	@$(BIN)/duetune tournament --jobs 4 >/dev/null
	@$(BIN)/python benchmarks/decision.py --warm
	@$(BIN)/pytest -n 0 --collect-only >/dev/null

# SlipCover takes its probes out once they were hit, so that coverage costs little. It would
# put them into compiled functions too: their modules are left out. What runs in processes that the
# tests start does not count.
test: venv
	@$(MAKE) --no-print-directory -j 2 check warm packages
	@mkdir -p out
	@$(BIN)/python -m slipcover --source src/duetune --json --out out/coverage.json \
		--omit "$$(grep -rlE '^@compiled|import compiled|import numba' --include='*.py' src/duetune | paste -sd,)" \
		-m pytest
	@$(BIN)/python -c 'import json; all = json.load(open("out/coverage.json"))["summary"]; \
		print("coverage: {percent_covered:.1f}% of lines; {missing_lines:,} are not run".format(**all))'

test-more: venv
	@DUETUNE_TEST_MORE=1 $(BIN)/pytest

# The drivers on real engines, which are started on this machine; some minutes of waiting.
test-fleets: venv slurm ray skypilot
	@DUETUNE_TEST_FLEETS=1 $(BIN)/pytest -n 2 -m fleets

# Built, installed where the source is not, and tried; `make test` does the same.
wheel: venv
	@$(BIN)/python -m hatchling build --target wheel --directory dist
	@$(BIN)/pytest -n 0 tests/e2e/test_wheel.py

# After an intended change of the public surface.
snapshots: venv
	@DUETUNE_UPDATE_SNAPSHOTS=1 $(BIN)/pytest -n 0 tests/unit/test_public_surface.py
	@git status --short tests/assets/snapshots

soak: venv
	@PYTHONPATH=tests $(BIN)/python benchmarks/soak.py

bench: venv
	$(BIN)/python benchmarks/optimum.py
	$(BIN)/python benchmarks/tournament.py
	$(BIN)/python benchmarks/selection.py
	$(BIN)/python benchmarks/paper.py
	$(BIN)/python benchmarks/resize.py
	$(BIN)/python benchmarks/knowledge.py
	$(BIN)/python benchmarks/predictability.py
	$(BIN)/python benchmarks/forecast.py
	$(BIN)/python benchmarks/sensitivity.py
	$(BIN)/python benchmarks/real_markets.py
	$(BIN)/python benchmarks/pools.py
	$(BIN)/python benchmarks/cluster.py
	$(BIN)/python benchmarks/decision.py
	PYTHONPATH=tests $(BIN)/python benchmarks/storage.py
	PYTHONPATH=tests $(BIN)/python benchmarks/fleets.py

bench-quick: venv
	$(BIN)/python benchmarks/optimum.py --quick
	$(BIN)/python benchmarks/tournament.py --quick
	$(BIN)/python benchmarks/selection.py --quick
	$(BIN)/python benchmarks/paper.py --quick
	$(BIN)/python benchmarks/resize.py --quick
	$(BIN)/python benchmarks/knowledge.py --quick
	$(BIN)/python benchmarks/predictability.py --quick
	$(BIN)/python benchmarks/forecast.py --quick
	$(BIN)/python benchmarks/sensitivity.py --quick
	$(BIN)/python benchmarks/real_markets.py --quick
	$(BIN)/python benchmarks/pools.py --quick
	$(BIN)/python benchmarks/cluster.py --quick
	$(BIN)/python benchmarks/decision.py --quick
	PYTHONPATH=tests $(BIN)/python benchmarks/storage.py --quick

clean:
	rm -rf .venv .venv-skypilot out dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
