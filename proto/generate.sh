#!/usr/bin/env bash
# Generates code from proto/ with the tools pinned in tools/go.mod, offline once
# the Go modules are cached.
#
#   proto/generate.sh             generate
#   proto/generate.sh --verify    fail when the committed code is not current
#   proto/generate.sh --lint      lint the contract, comments included
#   proto/generate.sh --breaking  fail on an incompatible change since the baseline
#   proto/generate.sh --baseline  take the contract as it is as the new baseline
set -euo pipefail
cd "$(dirname "$0")/.."

readonly baseline=proto/baseline.binpb

buf() { go tool -modfile=tools/go.mod buf "$@"; }

# imports writes the google/* files that the protos import, from pinned modules.
imports() { go -C tools run ./googleapis ../third_party/googleapis; }

# generated lists the generated files below a directory, in a fixed order.
generated() {
  (cd "$1" && find proto record -name '*.pb.go' -o -name '*.pb.gw.go' -o -path 'proto/openapi/openapi.json' -o -path '*/testdata/record.binpb' |
    LC_ALL=C sort)
}

generate() {
  imports
  buf generate --output "$1"
  record "$1"
}

# record compiles record/record.proto alone, as other projects do, without the
# files that the protos import.
record() {
  local alone
  alone=$(mktemp -d)
  cp record/record.proto "$alone"
  mkdir -p "$1/record/testdata"
  buf build "$alone" --exclude-source-info -o "$1/record/testdata/record.binpb"
  rm -r "$alone"
}

verify() {
  local fresh path stale=0
  fresh=$(mktemp -d)
  trap 'rm -rf "$fresh"' RETURN
  generate "$fresh"
  while read -r path; do
    if ! cmp -s "$path" "$fresh/$path"; then
      echo "not current: $path" >&2
      stale=1
    fi
  done < <(LC_ALL=C sort -u <(generated .) <(generated "$fresh"))
  if ((stale)); then
    echo "run proto/generate.sh and commit the result" >&2
    return 1
  fi
}

case "${1:-}" in
  "") generate . ;;
  --verify) verify ;;
  --lint) imports && buf lint ;;
  --breaking) imports && buf breaking proto --exclude-imports --against "$baseline" ;;
  --baseline) imports && buf build proto --exclude-source-info -o "$baseline" ;;
  *)
    sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" >&2
    exit 2
    ;;
esac
