package sign

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"

	"boxgate/policy/name"
	"boxgate/rule"
)

// request is a request to sign.
type request struct {
	*rule.Message
	hash string // of the body in hexadecimal, "" until the first use
}

func refuse(detail string) error {
	return &rule.Refusal{Status: http.StatusBadRequest, Reason: name.ReasonUnsignable, Detail: detail}
}

// tooLarge refuses a body that is too large to hash.
var tooLarge = rule.Refusal{Status: http.StatusRequestEntityTooLarge, Reason: name.ReasonUnsignable,
	Detail: "The gateway signs requests to this host, and hashes bodies of up to 1 MiB for it: send the hash of a larger one in X-Amz-Content-Sha256, or UNSIGNED-PAYLOAD, if the service takes that."}

// bodyHash returns the hash of the body in hexadecimal. It is computed once, as a template may use it several times.
func (r *request) bodyHash() string {
	if r.hash == "" {
		sum := sha256.Sum256(r.Body)
		r.hash = hex.EncodeToString(sum[:])
	}
	return r.hash
}

var errKey = errors.New("the key is empty")
