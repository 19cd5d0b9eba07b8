#!/usr/bin/env bash
# Runs the worker, after setup.sh; exec, so that signals reach it.
here="$(cd "$(dirname "$0")" && pwd)"
export PYTHONPATH="$here/gen${PYTHONPATH:+:$PYTHONPATH}"
exec "$here/.venv/bin/python" "$here/worker.py"
