"""A first session with the registry: sign-up, activation, log-in, a refusal, and log-out everywhere.

ACTIVATION_KEY is the activation key of an organization.
"""
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request

url = os.environ.get("AUTH_URL", "http://127.0.0.1:8080")


class Refusal(Exception):
    """A refusal. Programs decide by its reason."""

    def __init__(self, status, problem):
        super().__init__(problem["detail"])
        self.status, self.reason = status, problem["reason"]


def call(method, path, token=None, body=None, **form):
    """Sends a request. Parameters in a form stay out of URLs, and so out of logs."""
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    data = None
    if body is not None:
        headers["content-type"] = "application/json"
        data = json.dumps(body).encode()
    elif form:
        data = urllib.parse.urlencode(form).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, data, headers, method=method)) as response:
            return response.read().decode()
    except urllib.error.HTTPError as error:
        # A problem document (RFC 9457).
        raise Refusal(error.code, json.load(error)) from None


def refusal_of(*args, **form):
    try:
        call(*args, **form)
    except Refusal as refusal:
        return f"{refusal.status} {refusal.reason}"
    return "no refusal"


def active(token):
    return json.loads(call("GET", "/users/me", token))["active"]


# A new user each time.
username = f"maria-{time.time_ns()}"
password = "capivara no rio 7"

# The answer to a sign-up is a token for the new user, who isn't active yet.
sign_up = {
    "username": username,
    "nickname": username,
    "password": password,
    "state": "SP",
    "city": "São Paulo",
    "termsofusage": True,
    "roles": ["ROLE_INSTITUTION"],
}
token = call("POST", "/users/signup", body=sign_up)
print("signed up: active", active(token))

call("POST", "/users/activate", token, username=username, activationkey=os.environ["ACTIVATION_KEY"])
print("activated")

# The last token of the user, even an expired one, so that failed logins elsewhere can't lock this device out.
token = call("POST", "/users/login", token, username=username, password=password)
print("logged in: active", active(token))

print("refused:", refusal_of("POST", "/users/login", username=username, password="wrong"))

# All tokens of the user end.
call("POST", "/users/revokemytokens", token)
print("logged out:", refusal_of("GET", "/users/me", token))
