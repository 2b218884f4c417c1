// Verifies tokens of the registry offline and follows its revocations.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"math/big"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

var (
	// ErrInvalid: the token is invalid, expired or revoked. Answer 401.
	ErrInvalid = errors.New("invalid")
	// ErrUnavailable: the registry can't be asked. Answer 503.
	ErrUnavailable = errors.New("unavailable")
)

const maxStale = time.Minute

// Claims are the claims of a token that this program reads.
type Claims struct {
	jwt.RegisteredClaims
	Username string   `json:"username"`
	Roles    []string `json:"roles"`
	Active   bool     `json:"active"`
	Ver      int      `json:"ver"`
}

// Verifier verifies the tokens of one registry.
type Verifier struct {
	url, key, issuer, audience string

	reading  sync.Mutex // One request for keys at a time.
	mu       sync.RWMutex
	keys     map[string]*ecdsa.PublicKey
	keysRead time.Time
	maxAge   time.Duration
	retired  map[string]bool
	revoked  map[string]int
	asOf     time.Time
	lag      time.Duration
	asOfRead time.Time
}

// NewVerifier begins to follow revocations.
func NewVerifier(url, key, issuer, audience string) *Verifier {
	v := &Verifier{
		url: strings.TrimRight(url, "/"), key: key, issuer: issuer, audience: audience,
		retired: map[string]bool{}, revoked: map[string]int{},
	}
	go v.follow()
	return v
}

// Verify returns the claims of a valid token.
func (v *Verifier) Verify(token string) (*Claims, error) {
	v.mu.RLock()
	now, age := v.asOf, elapsed(v.asOfRead, v.lag)
	v.mu.RUnlock()
	stale := age > maxStale
	if !stale {
		now = now.Add(age)
	}
	claims := &Claims{}
	_, err := jwt.ParseWithClaims(token, claims, v.keyOf,
		jwt.WithValidMethods([]string{"ES256"}), jwt.WithIssuer(v.issuer), jwt.WithAudience(v.audience),
		// The registry's time counts.
		jwt.WithExpirationRequired(), jwt.WithTimeFunc(func() time.Time { return now }))
	switch {
	case errors.Is(err, ErrUnavailable):
		return nil, ErrUnavailable
	case err != nil:
		return nil, fmt.Errorf("%w: %v", ErrInvalid, err)
	case stale:
		return claims, v.ask(token)
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	if claims.Ver < v.revoked[claims.Subject] {
		return nil, fmt.Errorf("%w: revoked", ErrInvalid)
	}
	return claims, nil
}

func (v *Verifier) keyOf(token *jwt.Token) (any, error) {
	typ, _ := token.Header["typ"].(string)
	kid, _ := token.Header["kid"].(string)
	if typ = strings.ToLower(typ); typ != "at+jwt" && typ != "application/at+jwt" {
		return nil, errors.New("type")
	}
	v.reading.Lock()
	defer v.reading.Unlock()
	key, age, old := v.known(kid)
	if old || (key == nil && age > time.Second) {
		if err := v.readKeys(); err != nil {
			if key == nil || age > v.maxAge+maxStale {
				return nil, ErrUnavailable
			}
			return key, nil
		}
		key, _, _ = v.known(kid)
	}
	if key == nil {
		return nil, errors.New("unknown key")
	}
	return key, nil
}

func (v *Verifier) known(kid string) (key *ecdsa.PublicKey, age time.Duration, old bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if !v.retired[kid] {
		key = v.keys[kid]
	}
	age = elapsed(v.keysRead, 0)
	return key, age, age > v.maxAge
}

func (v *Verifier) readKeys() error {
	client := http.Client{Timeout: 5 * time.Second}
	response, err := client.Get(v.url + "/.well-known/jwks.json")
	if err != nil {
		return err
	}
	defer response.Body.Close()
	var set struct {
		Keys []struct{ Kid, X, Y string }
	}
	if err := json.NewDecoder(response.Body).Decode(&set); err != nil || response.StatusCode != 200 {
		return fmt.Errorf("status %d: %v", response.StatusCode, err)
	}
	keys := map[string]*ecdsa.PublicKey{}
	for _, each := range set.Keys {
		x, errX := base64.RawURLEncoding.DecodeString(each.X)
		y, errY := base64.RawURLEncoding.DecodeString(each.Y)
		if errX == nil && errY == nil {
			keys[each.Kid] = &ecdsa.PublicKey{
				Curve: elliptic.P256(), X: new(big.Int).SetBytes(x), Y: new(big.Int).SetBytes(y),
			}
		}
	}
	seconds := 300
	if found := regexp.MustCompile(`max-age=(\d+)`).FindStringSubmatch(response.Header.Get("Cache-Control")); found != nil {
		seconds, _ = strconv.Atoi(found[1])
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.keys, v.keysRead, v.maxAge = keys, time.Now(), time.Duration(seconds)*time.Second
	return nil
}

func (v *Verifier) ask(token string) error {
	var answer struct{ Active bool }
	err := v.call("auth.v1.Users/VerifyToken", map[string]any{"token": token}, 5*time.Second, &answer)
	if err != nil {
		return fmt.Errorf("%w: %v", ErrUnavailable, err)
	}
	if !answer.Active {
		return ErrInvalid
	}
	return nil
}

func (v *Verifier) call(rpc string, message any, timeout time.Duration, answer any) error {
	body, err := json.Marshal(message)
	if err != nil {
		return err
	}
	request, err := http.NewRequest("POST", v.url+"/"+rpc, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "Bearer "+v.key)
	client := http.Client{Timeout: timeout}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != 200 {
		return fmt.Errorf("status %d", response.StatusCode)
	}
	return json.NewDecoder(response.Body).Decode(answer)
}

// A page of the feed.
type page struct {
	Cursor      string
	AsOf, Now   *time.Time
	Revocations []struct {
		Sub           string
		MinGeneration int
	}
	RetiredKeys []string
	More        bool
	Restart     string
}

func (v *Verifier) follow() {
	var snapshot map[string]int
	cursor, wait, pause := "", 0, 250*time.Millisecond
	for {
		var next page
		err := v.call("auth.v1.Changes/Poll", map[string]any{
			"cursor": cursor, "kinds": []string{"CHANGE_KIND_REVOCATIONS"}, "wait": fmt.Sprintf("%ds", wait),
		}, time.Duration(wait+5)*time.Second, &next)
		if err != nil {
			log.Printf("the feed doesn't answer: %v", err)
			time.Sleep(pause)
			pause = min(5*time.Second, 2*pause)
			continue
		}
		pause = 250 * time.Millisecond
		if cursor == "" || next.Restart != "" {
			snapshot = map[string]int{}
		}
		snapshot = v.apply(next, snapshot)
		cursor, wait = next.Cursor, 10
		if next.More {
			wait = 0
		}
	}
}

// apply returns the snapshot if more of it is to come.
func (v *Verifier) apply(next page, snapshot map[string]int) map[string]int {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, each := range next.Revocations {
		v.revoked[each.Sub] = max(v.revoked[each.Sub], each.MinGeneration)
		if snapshot != nil {
			snapshot[each.Sub] = max(snapshot[each.Sub], each.MinGeneration)
		}
	}
	if next.Restart == "RESTART_CURSOR_LOST" {
		log.Print("ALARM: the registry was restored, or lost changes")
		v.maxAge = 0
		clear(v.retired) // A restored registry may have these keys again.
	}
	for _, kid := range next.RetiredKeys {
		v.retired[kid] = true
	}
	if next.AsOf == nil || next.Now == nil {
		return snapshot
	}
	if !next.AsOf.Before(v.asOf) || snapshot != nil {
		v.asOf, v.lag, v.asOfRead = *next.AsOf, max(0, next.Now.Sub(*next.AsOf)), time.Now()
	}
	if snapshot != nil {
		v.revoked = snapshot
	}
	return nil
}

// elapsed returns the time since a moment, by the clock that went further, and what had passed by then.
func elapsed(moment time.Time, before time.Duration) time.Duration {
	if moment.IsZero() {
		return 1<<63 - 1
	}
	return before + max(time.Since(moment), time.Now().Round(0).Sub(moment.Round(0)))
}

func main() {
	url := cmp.Or(os.Getenv("AUTH_URL"), "http://127.0.0.1:8080")
	issuer := cmp.Or(os.Getenv("AUTH_ISSUER"), url)
	v := NewVerifier(url, os.Getenv("AUTH_KEY"), issuer, cmp.Or(os.Getenv("AUTH_AUDIENCE"), "work-packages"))
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		claims, err := v.Verify(strings.TrimSpace(lines.Text()))
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println("valid", claims.Subject)
	}
}
