package clients

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// vendors are servers that issue or accept credentials, under their real names.
type vendors struct {
	t    *testing.T
	key  *rsa.PrivateKey // signing key of every account in the examples
	mark string          // part of every real credential
	down atomic.Bool     // issuers fail, and quote the request

	mu       sync.Mutex
	accepted map[string]int // by host
	hosts    map[string]http.Handler
}

func newVendors(t *testing.T) *vendors {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return &vendors{t: t, key: key, mark: rand.Text()[:24], accepted: map[string]int{}, hosts: map[string]http.Handler{}}
}

// credential returns the real credential of one kind.
func (v *vendors) credential(kind string) string { return "canary-" + kind + "-" + v.mark }

// accept serves requests to a host with the right credential, and refuses others with the protocol's error.
func (v *vendors) accept(host, name, value string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Values(name); r.TLS == nil || len(got) != 1 || got[0] != value {
			w.Header().Set("WWW-Authenticate", `Basic realm="vendor"`)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"message": "bad credentials"}`)
			return
		}
		v.mu.Lock()
		v.accepted[host]++
		v.mu.Unlock()
		next.ServeHTTP(w, r)
	})
}

// bearer is [vendors.accept] for a token of a kind.
func (v *vendors) bearer(host, kind string, next http.Handler) {
	v.hosts[host] = v.accept(host, "Authorization", "Bearer "+v.credential(kind), next)
}

// issue returns a page of an issuer, for clients that prove their identity.
func (v *vendors) issue(proven func(*http.Request) bool, answer any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if v.down.Load() || !proven(r) {
			_ = r.ParseForm()
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprintf(w, `{"error": "access_denied", "error_description": %q}`, fmt.Sprint(r.Header, r.Form))
			return
		}
		_ = json.NewEncoder(w).Encode(answer)
	}
}

// answering returns a page with a constant answer.
func answering(answer string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, answer)
	}
}

// pages returns a mux of patterns.
func pages(of map[string]http.Handler) http.Handler {
	mux := http.NewServeMux()
	for pattern, h := range of {
		mux.Handle(pattern, h)
	}
	return mux
}

func basic(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

// signed returns the claims of a JWT signed by the vendors' key, or nil.
func (v *vendors) signed(token string) map[string]any {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return nil
	}
	var head struct{ Alg string }
	var claims map[string]any
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	signature, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil || json.Unmarshal(decoded(parts[0]), &head) != nil || json.Unmarshal(decoded(parts[1]), &claims) != nil {
		return nil
	}
	switch head.Alg {
	case "RS256":
		err = rsa.VerifyPKCS1v15(&v.key.PublicKey, crypto.SHA256, sum[:], signature)
	case "PS256":
		err = rsa.VerifyPSS(&v.key.PublicKey, crypto.SHA256, sum[:], signature, nil)
	default:
		return nil
	}
	if expires, _ := claims["exp"].(float64); err != nil || int64(expires) < time.Now().Unix() {
		return nil
	}
	return claims
}

func decoded(part string) []byte {
	b, err := base64.RawURLEncoding.DecodeString(part)
	if err != nil {
		return nil
	}
	return b
}

// keyPEM returns the vendors' key as a PEM file.
func (v *vendors) keyPEM() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(v.key)}))
}

// certificatePEM returns a certificate of the vendors' key and the key, in one file.
func (v *vendors) certificatePEM() string {
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "app"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, v.key.Public(), v.key)
	if err != nil {
		v.t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})) + v.keyPEM()
}
