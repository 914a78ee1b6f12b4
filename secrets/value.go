package secrets

import (
	"bytes"
	"errors"
	"fmt"

	"boxgate/policy"
)

// maxValue is the longest value, in bytes; maxRaw includes a trailing line break.
const (
	maxValue = 8 << 10
	maxRaw   = maxValue + len("\r\n")
)

var (
	errEmpty   = errors.New("it is empty")
	errTooLong = fmt.Errorf("it is longer than %d bytes", maxValue)
)

// valueOf makes a secret of the content of a file or the output of a command: one trailing line break is stripped, and
// the rest must be valid in a header. raw is cleared.
func valueOf(raw []byte) (policy.Secret, error) {
	defer clear(raw)
	if len(raw) > maxRaw {
		return policy.Secret{}, errTooLong
	}
	text, cut := bytes.CutSuffix(raw, []byte("\n"))
	if cut {
		text = bytes.TrimSuffix(text, []byte("\r"))
	}
	return checked(string(text))
}

// checked makes a secret of a value if it is valid in a header.
func checked(v string) (policy.Secret, error) {
	if v == "" {
		return policy.Secret{}, errEmpty
	}
	if err := policy.CheckHeaderValue(v); err != nil {
		return policy.Secret{}, err
	}
	return policy.NewSecret(v), nil
}
