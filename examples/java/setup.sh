#!/usr/bin/env bash
# Makes what run.sh needs, inside target: classes of the API and of the worker, and their libraries.
set -euo pipefail
cd "$(dirname "$0")"

mvn --batch-mode --quiet compile dependency:copy-dependencies
