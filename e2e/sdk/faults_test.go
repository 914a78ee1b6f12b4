package sdk

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestFaultsOfAnswers: an answer that violates the description is detected, at any depth.
func TestFaultsOfAnswers(t *testing.T) {
	t.Parallel()
	all := schemas{}
	err := json.Unmarshal([]byte(`{
		"box": {"type": "object", "additionalProperties": false, "required": ["id"], "properties": {
			"id": {"type": "string"}, "state": {"type": "string", "enum": ["idle"]}, "at": {"type": "string", "format": "date-time"},
			"cost": {"type": "number"}, "size": {"type": "integer"}, "one": {"anyOf": [{"type": "string"}, {"$ref": "#/components/schemas/box"}]},
			"names": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}}}}}}`), &all)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ answer, fault string }{
		{`{"id": "a", "state": "idle", "at": "2026-01-02T15:04:05Z", "cost": 1, "size": 2, "one": {"id": "b"}, "names": {"x": ["y"]}}`, ""},
		{`{"id": "a", "cost": 0.5, "one": "b", "names": {}}`, ""},
		{`[]`, " is []interface {}, not object"},
		{`{}`, "/id is missing"},
		{`{"id": null}`, "/id is <nil>, not string"},
		{`{"id": "a", "more": 1}`, "/more is not described"},
		{`{"id": "a", "state": "busy"}`, "/state is \"busy\""},
		{`{"id": "a", "at": {}}`, "/at is map[string]interface {}, not string"},
		{`{"id": "a", "at": "today"}`, "/at is no time"},
		{`{"id": "a", "size": 1.5}`, "/size is json.Number, not integer"},
		{`{"id": "a", "one": {"id": 1}}`, "/one/id is json.Number, not string"},
		{`{"id": "a", "names": {"x": [1]}}`, "/names/x/0 is json.Number, not string"},
	} {
		f := &fuzz{gen: &generator{all: all}}
		faults := strings.Join(f.faultsOf(&schema{Ref: "#/components/schemas/box"}, []byte(tt.answer)), "; ")
		if tt.fault == "" && faults != "" || !strings.Contains(faults, tt.fault) {
			t.Errorf("%s: %q, want %q", tt.answer, faults, tt.fault)
		}
	}
}
