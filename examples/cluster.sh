#!/usr/bin/env bash
# A cluster of two nodes on this machine, and a comparison over it: bash examples/cluster.sh [FOLDER FOR THE LEDGER]
# On several machines each `ray start` is typed on its own, with the head's address and the same secret.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-.}
address=127.0.0.1:${PORT:-6379}

# Nothing is reported to anybody; who does not know the secret cannot join, nor ask for work.
export RAY_USAGE_STATS_ENABLED=0 RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=${RAY_AUTH_TOKEN:-$(python -c 'import secrets; print(secrets.token_hex(32))')}
export RAY_AUTH_TOKEN

quiet=(--block --num-cpus 1 --node-ip-address 127.0.0.1 --disable-usage-stats)
ray start --head --port "${address#*:}" --include-dashboard false "${quiet[@]}" > /dev/null 2>&1 &
head=$!
node=
trap 'kill $node $head; wait' EXIT
until ray status --address "$address" > /dev/null 2>&1; do kill -0 $head; sleep 1; done
ray start --address "$address" "${quiet[@]}" > /dev/null 2>&1 &
node=$!

undrift compare "$here/cluster.toml" --runtime ray --ray-address "$address" --quiet --ledger "$folder/cluster.sqlite"
