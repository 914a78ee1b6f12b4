package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// decode reads a document into v, a struct without maps. A member that v does not have, one that is given twice in
// whatever case, a value of another type and anything behind the document are refused: a document that this version does
// not understand whole would mean something else than was written.
func decode(data []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := checkMembers(dec); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("unexpected data after the document")
	}
	return decodeKnown(data, v)
}

// decodeKnown is decode for what the seal keeps from being changed, maps included.
func decodeKnown(data []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	return dec.Decode(v)
}

// checkMembers reads one value and refuses objects that have a member twice. encoding/json does not tell the case of
// members apart, so neither does this.
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
				return fmt.Errorf("the member %q is given twice", name)
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
