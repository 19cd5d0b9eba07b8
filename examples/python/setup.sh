#!/usr/bin/env bash
# Makes what run.sh needs, inside this folder: packages in .venv, generated code in gen.
set -euo pipefail
cd "$(dirname "$0")"

[ -x .venv/bin/pip ] || python3 -m venv .venv
.venv/bin/pip install --quiet --disable-pip-version-check -r requirements.txt
rm -rf gen && mkdir gen
.venv/bin/python -m grpc_tools.protoc -I ../../proto --python_out=gen --grpc_python_out=gen \
  ../../proto/leasehold/v1/*.proto ../../proto/buf/validate/validate.proto
