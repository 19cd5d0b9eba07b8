#!/usr/bin/env bash
# Runs the worker, after setup.sh; exec, so that signals reach it.
here="$(cd "$(dirname "$0")" && pwd)"
export PYTHONPATH="$here/gen${PYTHONPATH:+:$PYTHONPATH}"
[ -x "$here/.venv/bin/python" ] || { echo "run $here/setup.sh first" >&2; exit 1; }
exec "$here/.venv/bin/python" "$here/worker.py"
