#!/usr/bin/env bash
# Runs the worker, after setup.sh; exec, so that signals reach it.
here="$(cd "$(dirname "$0")" && pwd)"
[ -d "$here/node_modules" ] || { echo "run $here/setup.sh first" >&2; exit 1; }
exec node "$here/worker.mjs"
