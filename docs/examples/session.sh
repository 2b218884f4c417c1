#!/bin/sh
# A first session with the registry: sign-up, activation, log-in, a refusal, and log-out everywhere.
# ACTIVATION_KEY is the activation key of an organization.
set -eu
url=${AUTH_URL:-http://127.0.0.1:8080}
# A new user each time.
username=maria-$(date +%s)-$$
password='capivara no rio 7'

# call PATH ARGUMENT…: prints the body of the answer. For a refusal, prints its status and reason as an error, and returns 1.
call() {
  path=$1
  shift
  answer=$(curl -sS -w '\n%{http_code}' "$url$path" "$@")
  status=$(printf %s "$answer" | tail -n 1)
  body=$(printf %s "$answer" | sed '$d')
  if [ "$status" = 200 ]; then
    printf %s "$body"
  else
    echo "$status $(printf %s "$body" | sed 's/.*"reason":"\([A-Z_]*\)".*/\1/')" >&2
    return 1
  fi
}

# Prints whether a user is active.
active() {
  sed 's/.*"active":\([01]\).*/active \1/'
}

# The answer to a sign-up is a token for the new user, who isn't active yet.
token=$(call /users/signup -H 'Content-Type: application/json' -d '{
  "username": "'"$username"'", "nickname": "'"$username"'", "password": "'"$password"'",
  "state": "SP", "city": "São Paulo", "termsofusage": true, "roles": ["ROLE_INSTITUTION"]
}')
echo "signed up: $(call /users/me -H "Authorization: Bearer $token" | active)"

# Parameters in a form stay out of URLs, and so out of logs.
call /users/activate -H "Authorization: Bearer $token" \
  -d "username=$username" -d "activationkey=$ACTIVATION_KEY" >/dev/null
echo activated

# The last token of the user, even an expired one, so that failed logins elsewhere can't lock this device out.
token=$(call /users/login -H "Authorization: Bearer $token" -d "username=$username" --data-urlencode "password=$password")
echo "logged in: $(call /users/me -H "Authorization: Bearer $token" | active)"

# A refusal is a problem document (RFC 9457). Programs decide by its reason.
echo "refused: $(call /users/login -d "username=$username" -d password=wrong 2>&1 || true)"

# All tokens of the user end.
call /users/revokemytokens -X POST -H "Authorization: Bearer $token"
echo "logged out: $(call /users/me -H "Authorization: Bearer $token" 2>&1 || true)"
