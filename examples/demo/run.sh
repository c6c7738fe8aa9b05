#!/usr/bin/env bash
# Runs the main job on the embedded fleet: a real LoRA fine-tune through real preemptions.
# Run it from the root of the repository. The only argument is the folder of the program.
set -euo pipefail
bin=${1:-.venv/bin}
out=out/demo
export DUETUNE_HOME=$PWD/$out/home OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false

"$bin/duetune" fleet stop >/dev/null 2>&1 || true
rm -rf "$out"
mkdir -p "$out"
trap '"$bin/duetune" fleet stop >/dev/null 2>&1 || true' EXIT

say() { printf '\n\033[1m$ %s\033[0m\n' "$*"; }

# How long an emulated GPU takes for a microbatch; on a busy machine all of the demo takes longer.
microbatch=$("$bin/python" examples/demo/model.py "$out/model")
mkdir -p "$DUETUNE_HOME"
cat >"$DUETUNE_HOME/config.toml" <<END
[site]
trace = "$PWD/examples/demo/market.csv"
history_slots = 96
speed = $(awk "BEGIN { print 11.25 / $microbatch }")
emulated_microbatch_s = $microbatch
max_gpus = 4
notice_s = 2
silent_share = 0.2
seed = 7
END

say cat out/demo/home/config.toml
cat "$DUETUNE_HOME/config.toml"

say duetune launch examples/demo/job.yaml
"$bin/duetune" launch examples/demo/job.yaml --yes

job=$("$bin/python" examples/demo/check.py job)
say "duetune explain $job --plot out/demo.png"
"$bin/duetune" explain "$job" --plot out/demo.png

say duetune cost-report --by kind
"$bin/duetune" cost-report --by kind

say "python examples/demo/check.py $job"
"$bin/python" examples/demo/check.py "$job"
