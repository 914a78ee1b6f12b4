package schema

import (
	"encoding/json"
	"errors"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// object returns a schema in JSON.
func object(t *testing.T, m map[string]any) []byte {
	t.Helper()
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestLargeExpressions: 64 KiB of short expressions are no gigabytes of programs.
func TestLargeExpressions(t *testing.T) {
	patterns := map[string]any{}
	for i := range 64 {
		patterns["(?:"+strings.Repeat("x?y?", 240)+strings.Repeat("z", i)+"){990}"] = true
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	s, err := Parse(object(t, map[string]any{"patternProperties": patterns}))
	if err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if made := after.TotalAlloc - before.TotalAlloc; made > 64<<20 {
		t.Errorf("the schema takes %d MiB", made>>20)
	}
	if err := s.Check([]byte(`{"x":1}`)); err != nil {
		t.Errorf("an expression beyond the bounds does not match everything: %v", err)
	}
}

// TestExpressionsOfUse: the bounds leave room for the expressions of common schemas.
func TestExpressionsOfUse(t *testing.T) {
	for text, answers := range map[string][2]string{
		`^[0-9a-fA-F]{8}\b-[0-9a-fA-F]{4}\b-[0-9a-fA-F]{4}\b-[0-9a-fA-F]{4}\b-[0-9a-fA-F]{12}$`: {"2c5ea4c0-4067-11e9-8bad-9b1deb4d3b7d", "2c5ea4c0"},
		`^\d{4}-\d{2}-\d{2}T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?(Z|[+-]\d{2}:?\d{2})$`:       {"2026-01-02T03:04:05Z", "2026"},
		`^[\p{L}\p{N} .'-]{1,50}$`: {"Ada Lovelace", ""},
		`^.{1,1000}$`:              {strings.Repeat("x", 1000), strings.Repeat("x", 1001)},
	} {
		s, err := Parse(object(t, map[string]any{"pattern": text}))
		if err != nil {
			t.Fatal(err)
		}
		for i, answer := range answers {
			value, err := json.Marshal(answer)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Check(value); (err == nil) != (i == 0) || errors.Is(err, ErrWork) {
				t.Errorf("%s: %.50s: %v", text, value, err)
			}
		}
	}
}

// TestLongComparisons: no schema and answer of the largest sizes keep a processor busy for long.
func TestLongComparisons(t *testing.T) {
	const schemaSize, answerSize = 126 << 10, 1 << 20
	numbers := "[" + strings.Repeat("0,", answerSize/2-2) + "0]"
	objects := "[" + strings.Repeat(`{"a":0},`, answerSize/8-2) + `{"a":0}]`
	text := `"` + strings.Repeat("x", answerSize-2) + `"`
	many := func(v any, n int) []any {
		list := make([]any, n)
		for i := range list {
			list[i] = v
		}
		return list
	}
	members := map[string]any{}
	for i := range answerSize / 10 {
		members[strconv.Itoa(i)] = 0
	}
	for name, c := range map[string]struct {
		schema map[string]any
		answer string
	}{
		"a slow expression": {map[string]any{"pattern": "(x+x+){50}y"}, text},
		"expressions for names": {map[string]any{"additionalProperties": map[string]any{"patternProperties": map[string]any{"(x+x+){50}y": true}}},
			`{"a":{` + text + `:0}}`},
		"a long reference":   {map[string]any{"items": map[string]any{"$ref": "#" + strings.Repeat("/", schemaSize)}}, numbers},
		"many types":         {map[string]any{"items": map[string]any{"type": append(many("", schemaSize/4), "integer")}}, numbers},
		"many members":       {map[string]any{"items": map[string]any{"required": many("a", schemaSize/4)}}, objects},
		"lengths of a text":  {map[string]any{"allOf": many(map[string]any{"minLength": 1}, schemaSize/16)}, text},
		"schemas of a text":  {map[string]any{"allOf": many(map[string]any{}, schemaSize/3)}, text},
		"members of schemas": {map[string]any{"allOf": many(map[string]any{}, schemaSize/3)}, string(object(t, members))},
	} {
		s, err := Parse(object(t, c.schema))
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		err = s.Check([]byte(c.answer))
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("%s takes %v: %.100v", name, took, err)
		} else {
			t.Logf("%s takes %v: %.100v", name, took, err)
		}
	}
}
