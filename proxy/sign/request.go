package sign

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"strings"
	"time"

	"boxgate/policy"
)

// MaxBody is the largest body that is hashed.
const MaxBody = 1 << 20

// Field is one header field that will be forwarded.
type Field struct{ Name, Value string }

// Request is a request as it will be forwarded, but for what the signature adds and removes.
type Request struct {
	Method, Host string
	Target       string // path and query
	Fields       []Field
	Length       int64  // of the body; -1: not known in advance
	Body         []byte // if [Plan] asked for it
	Altered      bool   // the body is not the client's own: a hash that the client gave is not of this one
	Time         time.Time

	hash string // of Body in hexadecimal, once it was asked for
}

// Signed is what a signature changes in a request.
type Signed struct {
	Target string          // with the client's own signature removed
	Set    []policy.Header // headers to set in the place of any the client sent
	Remove []string        // headers of the client to remove
}

// Refusal is a request that cannot be signed.
type Refusal struct {
	Status int
	Detail string // a sentence for the client
}

// Error returns the sentence.
func (r *Refusal) Error() string { return r.Detail }

func refuse(detail string) error { return &Refusal{http.StatusBadRequest, detail} }

// TooLarge returns the refusal of a body that would have to be hashed.
func TooLarge() error {
	return &Refusal{http.StatusRequestEntityTooLarge,
		"The gateway signs requests to this host, and hashes bodies of up to 1 MiB for it: send the hash of a larger one in X-Amz-Content-Sha256, or UNSIGNED-PAYLOAD, if the service takes that."}
}

// Plan reports whether the whole body takes part in the signature, so that it must be read first. The error is a
// *[Refusal].
func Plan(s policy.Signing, r *Request) (body bool, err error) {
	if s.HMAC != nil {
		return s.HMAC.NeedsBody(), nil
	}
	hash, err := r.awsHash()
	return hash == "" && r.Length != 0, err
}

// values returns the values of a field.
func (r *Request) values(name string) (values []string) {
	for i := range r.Fields {
		if strings.EqualFold(r.Fields[i].Name, name) {
			values = append(values, r.Fields[i].Value)
		}
	}
	return values
}

// bodyHash returns the hash of the body in hexadecimal, which is made once: a template may have it several times.
func (r *Request) bodyHash() string {
	if r.hash == "" {
		sum := sha256.Sum256(r.Body)
		r.hash = hex.EncodeToString(sum[:])
	}
	return r.hash
}

var errKey = errors.New("the key is empty")
