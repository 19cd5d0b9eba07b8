#!/usr/bin/env bash
# Gets grpcurl, where there is none.
set -euo pipefail
command -v grpcurl >/dev/null || make -s -C "$(dirname "$0")/../.." grpcurl
