package document

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Decode decodes a document into v, a struct without maps. It refuses unknown members, duplicate members in any case,
// values of another type and trailing data: a document that this version does not fully understand may have another
// meaning than intended.
func Decode(data []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := checkMembers(dec); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("unexpected data after the document")
	}
	return decodeSealed(data, v)
}

// decodeSealed is Decode for sealed documents, which cannot have been changed. They may have maps.
func decodeSealed(data []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	return dec.Decode(v)
}

// checkMembers reads one value and refuses objects with duplicate members. Like encoding/json, it ignores the case of
// members.
func checkMembers(dec *json.Decoder) error {
	token, err := dec.Token()
	if err != nil {
		return err
	}
	open, ok := token.(json.Delim)
	if !ok {
		return nil
	}
	seen := map[string]bool{}
	for dec.More() {
		if open == '{' {
			name, err := dec.Token()
			if err != nil {
				return err
			}
			folded := strings.ToLower(fmt.Sprint(name))
			if seen[folded] {
				return fmt.Errorf("duplicate member %q", name)
			}
			seen[folded] = true
		}
		if err := checkMembers(dec); err != nil {
			return err
		}
	}
	_, err = dec.Token()
	return err
}
