package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/policy/name"
)

// secretView is the state of a secret. It never contains the value.
type secretView struct {
	Name      string  `json:"name"`
	Source    string  `json:"source" doc:"kind and place, such as file /etc/boxgate/openai.key"`
	Valid     bool    `json:"valid" doc:"whether a usable value is cached, or the next use reads it"`
	Stale     bool    `json:"stale,omitempty" doc:"the value expired without a use; the next use reads the source again"`
	ReadAt    *string `json:"read_at,omitempty" doc:"last successful read of the source"`
	ExpiresAt *string `json:"expires_at,omitempty" doc:"expiry reported by the source; absent: none"`
	Error     string  `json:"error,omitempty" doc:"why the last read failed"`
}

type secretsView struct {
	Secrets []secretView `json:"secrets"`
}

func viewOfSecret(s api.SecretStatus) secretView {
	return secretView{
		Name: s.Name, Source: s.Source, Valid: s.Valid, Stale: s.Stale, ReadAt: timeOrNone(s.Read), ExpiresAt: timeOrNone(s.Expires), Error: s.Error,
	}
}

func timeOrNone(at time.Time) *string {
	if at.IsZero() {
		return nil
	}
	text := at.UTC().Format(time.RFC3339)
	return &text
}

// listSecrets returns the state of each configured secret.
func (e *Endpoints) listSecrets(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	list, err := e.Secrets.Secrets(r.Context())
	if err != nil {
		return rest.Reply{}, err
	}
	view := secretsView{Secrets: make([]secretView, 0, len(list))}
	for _, s := range list {
		view.Secrets = append(view.Secrets, viewOfSecret(s))
	}
	return rest.Reply{Body: view}, nil
}

// refreshSecret discards the value of a secret and reads it again.
func (e *Endpoints) refreshSecret(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	s, err := e.Secrets.RefreshSecret(r.Context(), r.PathValue("name"))
	if err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: viewOfSecret(s), Change: &rest.Change{What: map[string]any{"secret_refreshed": s.Name}}}, nil
}

// maxGrace bounds how long a replaced key may remain valid.
const maxGrace = 30 * 24 * time.Hour

// storeKeyBody asks for a new key of the store.
type storeKeyBody struct {
	NewPassphrase string `json:"new_passphrase,omitempty" doc:"the new passphrase; only if the store is encrypted with a passphrase"`
}

// apiKeyBody asks for a new API key.
type apiKeyBody struct {
	Grace string `json:"grace,omitempty" doc:"how long earlier keys remain valid, such as 1h; absent: they are revoked immediately"`
}

// rotateStoreKey changes the key that encrypts the secrets of the store.
func (e *Endpoints) rotateStoreKey(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body storeKeyBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	if err := e.Store.RotateStoreKey(r.Context(), name.NewSecret(body.NewPassphrase)); err != nil {
		return rest.Reply{}, err
	}
	return rest.Done(), nil
}

// rotateAPIKey replaces the operator's API key. The new key is written to the state directory, not returned.
func (e *Endpoints) rotateAPIKey(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body apiKeyBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	var grace time.Duration
	if body.Grace != "" {
		var err error
		if grace, err = api.ParseDuration(body.Grace); err != nil || grace > maxGrace {
			return rest.Reply{}, problem.Invalid("/grace", "must be a duration from 0s to 720h, such as 1h")
		}
	}
	if err := e.Store.RotateAPIKey(r.Context(), grace); err != nil {
		return rest.Reply{}, err
	}
	return rest.Done(), nil
}

// keySet is a JSON Web Key Set (RFC 7517).
type keySet struct {
	Keys []publicKey `json:"keys"`
}

// publicKey is a key of a set.
type publicKey struct {
	Use       string `json:"use"`
	Type      string `json:"kty"`
	ID        string `json:"kid"`
	Curve     string `json:"crv"`
	Algorithm string `json:"alg"`
	X         string `json:"x"`
	Y         string `json:"y"`
}

// identityKeys returns the public keys that verify the identity tokens of forwarded requests.
func (e *Endpoints) identityKeys(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	text, err := e.Secrets.IdentityKeys(r.Context())
	if err != nil {
		return rest.Reply{}, err
	}
	var set keySet
	err = json.Unmarshal(text, &set)
	return rest.Reply{Body: set}, err
}

// errPrivateKey aborts a response that would contain a private key.
var errPrivateKey = errors.New("api: the Host returned a private key instead of a certificate")

func (e *Endpoints) boxCA(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	pem, err := e.Authorities.CA(r.Context(), box.ID)
	return writePEM(w, pem, err)
}

func (e *Endpoints) ingressCA(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	pem, err := e.Authorities.IngressCA(r.Context())
	return writePEM(w, pem, err)
}

// writePEM responds with certificates. It refuses data that contains a private key.
func writePEM(w http.ResponseWriter, pem []byte, err error) (rest.Reply, error) {
	if err != nil {
		return rest.Reply{}, err
	}
	if bytes.Contains(pem, []byte("PRIVATE KEY")) {
		return rest.Reply{}, errPrivateKey
	}
	w.Header().Set("Content-Type", "application/x-pem-file")
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(pem)
	return rest.Reply{Written: true}, nil
}

// backup streams a copy of the store. The connection is aborted if the copy fails halfway, so a complete response is a
// complete copy.
func (e *Endpoints) backup(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	out := &lateWriter{w: w}
	if err := e.Store.BackupStore(r.Context(), out); err != nil {
		if out.begun {
			panic(http.ErrAbortHandler)
		}
		return rest.Reply{}, err
	}
	return rest.Reply{Written: true}, nil
}

// lateWriter begins the response with its first bytes.
type lateWriter struct {
	w     http.ResponseWriter
	begun bool
}

// Write implements [io.Writer].
func (l *lateWriter) Write(b []byte) (int, error) {
	if !l.begun {
		l.begun = true
		l.w.Header().Set("Content-Type", "application/octet-stream")
		l.w.Header().Set("Content-Disposition", `attachment; filename="boxgate.db"`)
		l.w.WriteHeader(http.StatusOK)
	}
	return rest.SteadyWriter(l.w).Write(b)
}

func (e *Endpoints) verifyStore(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	report, err := e.Store.VerifyStore(r.Context())
	if err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: report}, nil
}
