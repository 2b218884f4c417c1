// A first session with the registry: sign-up, activation, log-in, a refusal, and log-out everywhere.
// ACTIVATION_KEY is the activation key of an organization.
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

var (
	base   = cmp.Or(os.Getenv("AUTH_URL"), "http://127.0.0.1:8080")
	client = http.Client{Timeout: 20 * time.Second}
)

// Refusal is a problem document (RFC 9457). Programs decide by its reason.
type Refusal struct {
	Status         int
	Reason, Detail string
}

func (r *Refusal) Error() string { return r.Detail }

// call sends a request. The body is a form (url.Values), JSON, or nil. Parameters in a form stay out of URLs, and so out of
// logs.
func call(method, path, token string, body any) (string, error) {
	var content io.Reader
	mediaType := "application/json"
	if form, ok := body.(url.Values); ok {
		content, mediaType = strings.NewReader(form.Encode()), "application/x-www-form-urlencoded"
	} else if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return "", err
		}
		content = bytes.NewReader(text)
	}
	request, err := http.NewRequest(method, base+path, content)
	if err != nil {
		return "", err
	}
	if content != nil {
		request.Header.Set("Content-Type", mediaType)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode == http.StatusOK {
		return string(answer), err
	}
	refusal := &Refusal{}
	if err := json.Unmarshal(answer, refusal); err != nil {
		return "", fmt.Errorf("status %d: %w", response.StatusCode, err)
	}
	return "", refusal
}

// must ends the program unless the call was answered.
func must(answer string, err error) string {
	if err != nil {
		log.Fatal(err)
	}
	return answer
}

func refusalOf(_ string, err error) string {
	var refusal *Refusal
	if errors.As(err, &refusal) {
		return fmt.Sprint(refusal.Status, " ", refusal.Reason)
	}
	return fmt.Sprint("no refusal: ", err)
}

func active(token string) int {
	var me struct{ Active int }
	if err := json.Unmarshal([]byte(must(call("GET", "/users/me", token, nil))), &me); err != nil {
		log.Fatal(err)
	}
	return me.Active
}

func main() {
	// A new user each time.
	username := fmt.Sprint("maria-", time.Now().UnixNano())
	password := "capivara no rio 7"
	form := func(name, value string) url.Values { return url.Values{"username": {username}, name: {value}} }

	// The answer to a sign-up is a token for the new user, who isn't active yet.
	token := must(call("POST", "/users/signup", "", map[string]any{
		"username": username, "nickname": username, "password": password, "state": "SP", "city": "São Paulo",
		"termsofusage": true, "roles": []string{"ROLE_INSTITUTION"},
	}))
	fmt.Println("signed up: active", active(token))

	must(call("POST", "/users/activate", token, form("activationkey", os.Getenv("ACTIVATION_KEY"))))
	fmt.Println("activated")

	// The last token of the user, even an expired one, so that failed logins elsewhere can't lock this device out.
	token = must(call("POST", "/users/login", token, form("password", password)))
	fmt.Println("logged in: active", active(token))

	fmt.Println("refused:", refusalOf(call("POST", "/users/login", "", form("password", "wrong"))))

	// All tokens of the user end.
	must(call("POST", "/users/revokemytokens", token, nil))
	fmt.Println("logged out:", refusalOf(call("GET", "/users/me", token, nil)))
}
