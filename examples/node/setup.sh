#!/usr/bin/env bash
# Makes what run.sh needs, inside this folder: the packages of package-lock.json.
set -euo pipefail
cd "$(dirname "$0")"

npm ci --silent --no-audit --no-fund --ignore-scripts
