package sign

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"

	"boxgate/policy/name"
	"boxgate/rule"
)

// request is a request that is signed.
type request struct {
	*rule.Message
	hash string // of the body in hexadecimal, once it was asked for
}

func refuse(detail string) error {
	return &rule.Refusal{Status: http.StatusBadRequest, Reason: name.ReasonUnsignable, Detail: detail}
}

// tooLarge is the refusal of a body that would have to be hashed.
var tooLarge = rule.Refusal{Status: http.StatusRequestEntityTooLarge, Reason: name.ReasonUnsignable,
	Detail: "The gateway signs requests to this host, and hashes bodies of up to 1 MiB for it: send the hash of a larger one in X-Amz-Content-Sha256, or UNSIGNED-PAYLOAD, if the service takes that."}

// bodyHash returns the hash of the body in hexadecimal, which is made once: a template may have it several times.
func (r *request) bodyHash() string {
	if r.hash == "" {
		sum := sha256.Sum256(r.Body)
		r.hash = hex.EncodeToString(sum[:])
	}
	return r.hash
}

var errKey = errors.New("the key is empty")
