#!/bin/sh
# Verifies tokens of the registry offline, without following its revocations: a revoked token is valid until it expires. Shows
# what a verifier checks; a service uses a library.
set -eu
url=${AUTH_URL:-http://127.0.0.1:8080}
issuer=${AUTH_ISSUER:-$url}
audience=${AUTH_AUDIENCE:-work-packages}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# They are good for the `max-age` of this answer.
curl -sS --fail "$url/.well-known/jwks.json" -o "$work/keys"

# decode TEXT: decodes base64url, which has no padding.
decode() {
  padded=$(printf %s "$1" | tr -- -_ +/)
  while [ $((${#padded} % 4)) -ne 0 ]; do padded="$padded="; done
  printf %s "$padded" | openssl base64 -d -A
}

# hex TEXT: the same, as hexadecimal digits.
hex() {
  decode "$1" | od -An -v -tx1 | tr -d ' \n'
}

# verify TOKEN: prints the result.
verify() {
  header=$(printf %s "$1" | cut -d. -f1)
  payload=$(printf %s "$1" | cut -d. -f2)
  signature=$(hex "$(printf %s "$1" | cut -d. -f3)")
  if ! key=$(decode "$header" | jq -ce --slurpfile set "$work/keys" '
      select(.alg == "ES256" and .typ == "at+jwt") | .kid as $kid | $set[].keys[] | select(.kid == $kid)' 2>"$work/error") ||
    [ ${#signature} -ne 128 ]; then
    echo 'invalid algorithm, type or key'
    return
  fi
  x=$(hex "$(printf %s "$key" | jq -r .x)")
  y=$(hex "$(printf %s "$key" | jq -r .y)")
  cat >"$work/asn1" <<EOF
asn1 = SEQUENCE:key
[key]
algorithm = SEQUENCE:algorithm
point = FORMAT:HEX,BITSTRING:04$x$y
[algorithm]
type = OID:id-ecPublicKey
curve = OID:prime256v1
EOF
  openssl asn1parse -genconf "$work/asn1" -noout -out "$work/key"
  r=$(printf %s "$signature" | cut -c1-64)
  s=$(printf %s "$signature" | cut -c65-)
  printf 'asn1 = SEQUENCE:pair\n[pair]\nr = INTEGER:0x%s\ns = INTEGER:0x%s\n' "$r" "$s" >"$work/asn1"
  openssl asn1parse -genconf "$work/asn1" -noout -out "$work/signature"
  if ! printf %s "$header.$payload" |
    openssl dgst -sha256 -keyform DER -verify "$work/key" -signature "$work/signature" >"$work/said" 2>&1; then
    echo 'invalid signature'
  elif ! decode "$payload" | jq -re --arg issuer "$issuer" --arg audience "$audience" \
    'select(.iss == $issuer and ([.aud] | flatten | index($audience)) and .exp > now) | "valid \(.sub)"'; then
    echo 'invalid issuer, audience or time'
  fi
}

while read -r token; do verify "$token"; done
