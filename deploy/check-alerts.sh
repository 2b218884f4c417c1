#!/bin/sh
# Checks alerts.yaml with promtool (Debian: package prometheus), or with the program that PROMTOOL names: the rules, their
# tests, and, with the URL of a running service's metrics, these metrics.
#
#   deploy/check-alerts.sh [http://127.0.0.1:9090/metrics]
set -eu
cd "$(dirname "$0")"
promtool=${PROMTOOL:-promtool}
if ! command -v "$promtool" >/dev/null; then
  echo "promtool is missing: install the package prometheus, or set PROMTOOL to its path." >&2
  exit 127
fi
"$promtool" check rules alerts.yaml
"$promtool" test rules alerts.test.yaml
if [ $# -gt 0 ]; then
  # Skips the metrics of Node.js, whose names aren't defined here.
  curl --fail --silent --show-error "$1" | grep -E '^(# (HELP|TYPE) )?auth_' | "$promtool" check metrics
fi
