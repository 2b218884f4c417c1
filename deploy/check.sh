#!/usr/bin/env bash
# Checks the files in this folder with their tools. If a tool is missing, its check is reported as not run; if a check
# fails, the exit code is 1. Tools must be on the PATH; KUBERNETES_SCHEMAS may name a folder or URL of
# JSON schemas for kubeconform instead of the default ones. With --all, missing tools also count as failures.
set -uo pipefail
cd "$(dirname "$0")" || exit
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0 missing=0

# check TITLE TOOLS COMMAND…: runs the command if the tools (one or more words) exist. The command reports errors by its
# exit code.
check() {
  local title=$1 tools=$2 tool
  shift 2
  for tool in $tools; do
    command -v "$tool" >"$work/where" && continue
    echo "not run  $title: there is no $tool"
    missing=$((missing + 1))
    return
  done
  if "$@" >"$work/said" 2>&1; then
    echo "passed   $title"
    passed=$((passed + 1))
  else
    echo "FAILED   $title"
    sed 's/^/         /' "$work/said"
    failed=$((failed + 1))
  fi
}

# silent COMMAND…: treats any output as a failure.
silent() {
  local said
  said=$("$@" 2>&1)
  local code=$?
  printf '%s' "$said"
  [ $code -eq 0 ] && [ -z "$said" ]
}

# Certificates at the paths of the examples, valid for a day.
certificate() {
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj "/CN=$1" \
    -addext "subjectAltName=DNS:$1" -keyout "$work/$1.key" -out "$work/$1.crt" 2>>"$work/openssl"
}

check_systemd() {
  # The paths of the programs may differ on this machine.
  mkdir -p "$work/units" "$work/credentials"
  for unit in systemd/*; do
    sed "s#^WorkingDirectory=.*#WorkingDirectory=$work#; s#^ExecStart=/usr/bin/node#ExecStart=$(command -v node)#
      s#/opt/auth-registry/#$(cd .. && pwd)/#" "$unit" >"$work/units/${unit##*/}"
  done
  silent systemd-analyze verify --man=no "$work"/units/*
}

check_exposure() {
  # The scale is 0 (safe) to 100; without hardening it is 96.
  systemd-analyze security --offline=true --threshold=20 --no-pager systemd/*.service
}

check_nginx() {
  certificate auth || return 1
  mkdir -p "$work/nginx" && sed "s#/etc/nginx/tls/#$work/#; s#/var/log/nginx/#$work/#" nginx/auth-registry.conf >"$work/nginx/auth.conf"
  local paths='' path
  for path in client_body proxy fastcgi uwsgi scgi; do paths+="${path}_temp_path $work/$path; "; done
  printf 'pid %s/pid; error_log stderr; events {} http { access_log off; %s include %s/nginx/auth.conf; }\n' \
    "$work" "$paths" "$work" >"$work/nginx.conf"
  nginx -t -p "$work" -c "$work/nginx.conf" >"$work/nginx.said" 2>&1
  local code=$?
  cat "$work/nginx.said"
  [ $code -eq 0 ] && ! grep -qF '[warn]' "$work/nginx.said"
}

check_haproxy() {
  certificate auth || return 1
  cat "$work/auth.crt" "$work/auth.key" >"$work/auth.pem"
  sed "s#/etc/haproxy/tls/#$work/#; s#auth[12]:#127.0.0.1:#" haproxy/auth-registry.cfg >"$work/haproxy.cfg"
  haproxy -c -q -f patroni/haproxy.cfg && silent haproxy -c -q -f "$work/haproxy.cfg"
}

# The example with other paths and ports, in front of the built service.
check_proxied() {
  (cd .. && node dist/test/run.js "dist/test/deploy/$1.deploy.test.js")
}

# The chart in each variant.
chart=helm/auth-registry
forms=(
  'server.settings.AUTH_ISSUER=https://auth.example.org,server.trustedProxies=10.0.0.0/8'
  'server.settings.AUTH_ISSUER=https://auth.example.org,server.trustedProxies=10.0.0.0/8,tls.server=one,server.autoscaling.enabled=true,secrets.migrate=three,migrate.contract=1.1.0'
  'server.settings.AUTH_ISSUER=https://auth.example.org,server.trustedProxies=10.0.0.0/8,networkPolicy.enabled=false,secrets.smtp=false'
  'server.settings.AUTH_ISSUER=https://auth.example.org,server.trustedProxies=10.0.0.0/8,backup.enabled=true,backup.claim=backups,backup.recipients={age1one,age1two}'
)

check_helm() {
  local form
  for form in "${forms[@]}"; do helm lint --strict --quiet "$chart" --kube-version 1.33.0 --set "$form" || return 1; done
}

check_kubernetes() {
  local form
  for form in "${forms[@]}"; do
    helm template check "$chart" --kube-version 1.33.0 --set "$form" >"$work/manifests.yaml" || return 1
    kubeconform -strict -summary -kubernetes-version 1.33.0 ${KUBERNETES_SCHEMAS:+-schema-location "$KUBERNETES_SCHEMAS"} \
      "$work/manifests.yaml" || return 1
  done
}

check_compose() {
  mkdir -p "$work/compose/secrets" && cp compose.yaml "$work/compose/"
  for secret in database-password database-url master-key; do : >"$work/compose/secrets/$secret"; done
  "${compose[@]}" -f "$work/compose/compose.yaml" config --quiet
}

check 'Dockerfile (hadolint)' hadolint hadolint Dockerfile
# It is a docker plugin or a separate program.
compose=(docker-compose)
if docker compose version >"$work/where" 2>&1; then compose=(docker compose); fi
check 'compose.yaml (docker compose config)' "${compose[0]}" check_compose
check 'compose.yaml, prometheus.yaml, prometheus-adapter.yaml, patroni.yaml (yamllint)' yamllint \
  yamllint --strict -d '{extends: default, rules: {line-length: {max: 140}, document-start: disable, comments: disable, braces: {max-spaces-inside: 1}}}' \
  compose.yaml prometheus.yaml helm/prometheus-adapter.yaml patroni/patroni.yaml helm/auth-registry/Chart.yaml helm/auth-registry/values.yaml
check 'systemd units (systemd-analyze verify)' systemd-analyze check_systemd
check 'systemd units (systemd-analyze security)' systemd-analyze check_exposure
check 'nginx example (nginx -t)' nginx check_nginx
check 'HAProxy examples (haproxy -c)' haproxy check_haproxy
check 'nginx example before a service (test/deploy)' nginx check_proxied nginx
check 'Envoy example of docs/verifying.md (test/deploy)' envoy check_proxied jwt-authn
check 'alerts and their tests (promtool)' promtool ./check-alerts.sh
check 'Prometheus example (promtool)' promtool promtool check config --syntax-only prometheus.yaml
check 'Helm chart (helm lint)' helm check_helm
check 'Helm chart (kubeconform)' 'helm kubeconform' check_kubernetes
check 'these scripts (shellcheck)' shellcheck shellcheck check.sh check-alerts.sh release.sh

echo "$passed passed, $failed failed, $missing not run"
[ "${1-}" != --all ] || failed=$((failed + missing))
[ "$failed" -eq 0 ]
