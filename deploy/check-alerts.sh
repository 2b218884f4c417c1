#!/bin/sh
# Checks alerts.yaml with Prometheus' own tool, promtool (Debian: package prometheus), or the one that PROMTOOL names:
# the rules, their tests, and, given the address of a running service's metrics, what it exports.
#
#   deploy/check-alerts.sh [http://127.0.0.1:9090/metrics]
set -eu
cd "$(dirname "$0")"
promtool=${PROMTOOL:-promtool}
if ! command -v "$promtool" >/dev/null; then
  echo "promtool is missing: install the package prometheus, or say where it is by PROMTOOL." >&2
  exit 127
fi
"$promtool" check rules alerts.yaml
"$promtool" test rules alerts.test.yaml
if [ $# -gt 0 ]; then
  # Those of Node.js aren't ours to name.
  curl --fail --silent --show-error "$1" | grep -E '^(# (HELP|TYPE) )?auth_' | "$promtool" check metrics
fi
