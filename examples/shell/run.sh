#!/usr/bin/env bash
# Runs the worker, after setup.sh; exec, so that signals reach it.
here="$(cd "$(dirname "$0")" && pwd)"
export PATH="$PATH:$here/../../.tools/bin"
exec "$here/worker.sh"
