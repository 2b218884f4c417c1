#!/usr/bin/env bash
# Makes the files of a release in dist/release: both packages, the bill of materials, and their checksums.
set -euo pipefail
cd "$(dirname "$0")/.."
rm -rf dist/release
mkdir -p dist/release
npm pack --silent --pack-destination dist/release
npm run --silent pack:client
mv dist/auth-registry-client-*.tgz dist/release
node deploy/sbom.mjs >dist/release/auth-registry.cdx.json
cd dist/release
sha256sum -- * | tee SHA256SUMS
