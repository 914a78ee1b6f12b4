package remote

import (
	"encoding/json"

	"boxgate/policy/name"
)

// FieldOf returns a text field of a JSON object.
func FieldOf(object, field string) (Value, error) {
	var fields map[string]json.RawMessage
	if json.Unmarshal([]byte(object), &fields) != nil {
		return Value{}, ErrAnswer("JSON object to take the field from")
	}
	var text string
	raw, ok := fields[field]
	if !ok || json.Unmarshal(raw, &text) != nil || text == "" {
		return Value{}, ErrAnswer("text in the configured field")
	}
	return Value{Secret: name.NewSecret(text)}, nil
}
