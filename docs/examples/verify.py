"""Verifies tokens of the registry offline and follows its revocations."""
import json
import os
import re
import sys
import threading
import time
import urllib.request
from datetime import datetime

import jwt


class Invalid(Exception):
    """The token is invalid, expired or revoked: answer 401."""


class Unavailable(Exception):
    """The registry can't be asked: answer 503."""


class Verifier:
    max_stale = 60  # seconds

    def __init__(self, url, key, issuer, audience):
        self.url, self.key, self.issuer, self.audience = url.rstrip("/"), key, issuer, audience
        self.lock = threading.Lock()
        self.keys, self.keys_read, self.max_age, self.retired = {}, None, 0, set()
        self.revoked, self.as_of, self.lag, self.as_of_read = {}, 0, 0, None
        threading.Thread(target=self._follow, daemon=True).start()

    def verify(self, token):
        """Returns the claims of a valid token."""
        age = self.lag + elapsed(self.as_of_read)
        stale = age > self.max_stale
        try:
            header = jwt.get_unverified_header(token)
            if header.get("typ", "").lower() not in ("at+jwt", "application/at+jwt"):
                raise Invalid("type")
            claims = jwt.decode(
                token,
                self._key(header.get("kid")),
                algorithms=["ES256"],
                issuer=self.issuer,
                audience=self.audience,
                # The registry's time counts, which is judged below.
                options={"require": ["exp", "sub", "ver"], "verify_exp": False, "verify_iat": False},
            )
        except jwt.InvalidTokenError as error:
            raise Invalid(str(error)) from error
        if claims["exp"] <= self.as_of + (0 if stale else age):
            raise Invalid("expired")
        if stale:
            self._ask(token)
        elif claims["ver"] < self.revoked.get(claims["sub"], 0):
            raise Invalid("revoked")
        return claims

    def _key(self, kid):
        with self.lock:  # One request at a time.
            age = elapsed(self.keys_read)
            known = kid in self.keys and kid not in self.retired
            if age > self.max_age or (not known and age > 1):
                try:
                    self._read_keys()
                except OSError as error:
                    if not known or age > self.max_age + self.max_stale:
                        raise Unavailable("the keys can't be read") from error
        if kid not in self.keys or kid in self.retired:
            raise Invalid("unknown key")
        return self.keys[kid]

    def _read_keys(self):
        with urllib.request.urlopen(f"{self.url}/.well-known/jwks.json", timeout=5) as response:
            self.keys = {jwk["kid"]: jwt.PyJWK(jwk).key for jwk in json.load(response)["keys"]}
            age = re.search(r"max-age=(\d+)", response.headers.get("cache-control", ""))
            self.max_age, self.keys_read = int(age[1]) if age else 300, now()

    def _ask(self, token):
        try:
            answer = self._call("auth.v1.Users/VerifyToken", {"token": token}, 5)
        except OSError as error:
            raise Unavailable("the registry doesn't answer") from error
        if not answer.get("active"):
            raise Invalid("inactive")

    def _call(self, rpc, message, timeout):
        request = urllib.request.Request(
            f"{self.url}/{rpc}",
            json.dumps(message).encode(),
            {"content-type": "application/json", "authorization": f"Bearer {self.key}"},
        )
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return json.load(response)

    def _follow(self):
        cursor, snapshot, wait, pause = "", None, 0, 0.25
        while True:
            message = {"cursor": cursor, "kinds": ["CHANGE_KIND_REVOCATIONS"], "wait": f"{wait}s"}
            try:
                page = self._call("auth.v1.Changes/Poll", message, wait + 5)
            except (OSError, ValueError) as error:
                print(f"the feed doesn't answer: {error}", file=sys.stderr)
                time.sleep(pause)
                pause = min(5, 2 * pause)
                continue
            pause = 0.25
            if cursor == "" or "restart" in page:
                snapshot = {}
            for each in page.get("revocations", []):
                for known in (self.revoked, snapshot) if snapshot is not None else (self.revoked,):
                    known[each["sub"]] = max(each["minGeneration"], known.get(each["sub"], 0))
            if page.get("restart") == "RESTART_CURSOR_LOST":
                print("ALARM: the registry was restored, or lost changes", file=sys.stderr)
                self.max_age = 0
                self.retired.clear()  # A restored registry may have these keys again.
            self.retired.update(page.get("retiredKeys", []))
            cursor, wait = page["cursor"], 0 if page.get("more") else 10
            if "asOf" in page:
                as_of, answered = (datetime.fromisoformat(page[name]).timestamp() for name in ("asOf", "now"))
                if as_of >= self.as_of or snapshot is not None:
                    self.as_of, self.lag, self.as_of_read = as_of, max(0, answered - as_of), now()
                if snapshot is not None:
                    self.revoked, snapshot = snapshot, None


def now():
    return time.time(), time.monotonic()


def elapsed(moment):
    """Seconds since a moment, by the clock that went further."""
    if moment is None:
        return float("inf")
    return max(time.time() - moment[0], time.monotonic() - moment[1])


if __name__ == "__main__":
    env = os.environ
    url = env.get("AUTH_URL", "http://127.0.0.1:8080")
    audience = env.get("AUTH_AUDIENCE", "work-packages")
    verifier = Verifier(url, env.get("AUTH_KEY", ""), env.get("AUTH_ISSUER", url), audience)
    for line in sys.stdin:
        try:
            print("valid", verifier.verify(line.strip())["sub"], flush=True)
        except (Invalid, Unavailable) as error:
            print(type(error).__name__.lower(), error, flush=True)
