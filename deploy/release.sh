#!/usr/bin/env bash
# Makes the files of a release in dist/release: both packages, the bill of materials, and their checksums.
set -euo pipefail
cd "$(dirname "$0")/.."
npm run build
rm -rf dist/release
mkdir -p dist/release
npm pack --silent --ignore-scripts --pack-destination dist/release
npm run --silent pack:client
mv dist/auth-registry-client-*.tgz dist/release
# `npm sbom --omit=dev` would also omit what tools share with the programs.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/auth-registry"
cp package.json package-lock.json .npmrc "$work/auth-registry"
(
  cd "$work/auth-registry"
  npm pkg delete devDependencies scripts
  npm install --silent --package-lock-only
  npm sbom --package-lock-only --sbom-format=cyclonedx
) >dist/release/auth-registry.cdx.json
cd dist/release
# Not in a pipe, which could make the file before the names are listed.
sums=$(sha256sum -- *)
printf '%s\n' "$sums" | tee SHA256SUMS
