#!/usr/bin/env bash
# Runs the worker, after setup.sh; exec, so that signals reach it.
here="$(cd "$(dirname "$0")" && pwd)"
[ -d "$here/target/dependency" ] || { echo "run $here/setup.sh first" >&2; exit 1; }
exec java -cp "$here/target/classes:$here/target/dependency/*" Worker
