package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// The values are compared as the specification demands (JSON Schema 2020-12, validation), and as zod does.
func TestCheck(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ schema, good, bad string }{
		{`{"type":"object","properties":{"a":{"type":"string"},"n":{"type":"integer"}},"required":["a"],"additionalProperties":false}`, `{"a":"x","n":3} {"a":""} {"a":"x","n":3.0}`, `{} {"a":1} {"a":"x","n":1.5} {"a":"x","b":1} [] "a" null`},
		{`{"type":["string","null"]}`, `"x" null`, `1 {}`},
		{`{"type":"number","nullable":true}`, `1 1.5 null`, `"1"`},
		{`{"enum":["a",1,null,{"x":[1]}]}`, `"a" 1 1.0 null {"x":[1]}`, `"b" 2 {"x":[2]} {"x":[1],"y":1} [1]`},
		{`{"const":[1,{"a":true}]}`, `[1,{"a":true}]`, `[1] [1,{"a":false}] 1`},
		{`{"type":"array","items":{"type":"number","minimum":2,"exclusiveMaximum":5},"minItems":1,"maxItems":2,"uniqueItems":true}`, `[2] [2,4.5]`, `[] [1] [5] [2,3,4] [2,2]`},
		{`{"items":[{"type":"string"}],"additionalItems":{"type":"number"}}`, `["a",1] ["a"] []`, `[1] ["a","b"]`},
		{`{"prefixItems":[{"type":"string"}],"items":false}`, `["a"] []`, `["a",1] [1]`},
		{`{"type":"string","minLength":2,"maxLength":3,"pattern":"^[a-zé]+$"}`, `"ab" "éé"`, `"a" "abcd" "AB"`},
		{`{"pattern":"(?!x)"}`, `"x"`, ``}, // RE2 has no such expression
		{`{"anyOf":[{"type":"string"},{"type":"number","multipleOf":0.1}]}`, `"a" 0.3 2`, `0.35 null`},
		{`{"oneOf":[{"minimum":1},{"maximum":3}]}`, `0 4`, `2`},
		{`{"allOf":[{"required":["a"]},{"required":["b"]}]}`, `{"a":1,"b":2} 1`, `{"a":1}`},
		{`{"not":{"type":"null"}}`, `1`, `null`},
		{`{"if":{"required":["a"]},"then":{"required":["b"]},"else":{"required":["c"]}}`, `{"a":1,"b":1} {"c":1}`, `{"a":1} {}`},
		{`{"patternProperties":{"^x":{"type":"number"}},"additionalProperties":{"type":"string"},"propertyNames":{"maxLength":3},"minProperties":1,"maxProperties":2}`, `{"x":1,"y":"a"}`, `{"x":"a"} {"y":1} {"long1":"a"} {} {"a":"","b":"","c":""}`},
		{`{"$defs":{"node":{"type":"object","properties":{"next":{"$ref":"#/$defs/node"},"v":{"type":"number"}},"required":["v"]}},"$ref":"#/$defs/node"}`, `{"v":1,"next":{"v":2}}`, `{"v":1,"next":{}} 1`},
		{`{"properties":{"a":{"$ref":"#/properties/b"},"b":{"type":"number","exclusiveMinimum":true,"minimum":1}}}`, `{"a":2}`, `{"a":1} {"a":"x"}`},
		{`{"definitions":{"a/b":{"type":"null"}},"$ref":"#/definitions/a~1b"}`, `null`, `1`},
	} {
		s, err := Parse([]byte(tt.schema))
		if err != nil {
			t.Fatalf("%s: %v", tt.schema, err)
		}
		for _, value := range strings.Fields(tt.good) {
			if err := s.Check([]byte(value)); err != nil {
				t.Errorf("%s: %s: %v", tt.schema, value, err)
			}
		}
		for _, value := range strings.Fields(tt.bad) {
			if err := s.Check([]byte(value)); err == nil {
				t.Errorf("%s: %s matches", tt.schema, value)
			}
		}
	}
}

func TestMessages(t *testing.T) {
	t.Parallel()
	s, err := Parse([]byte(`{"properties":{"list":{"items":{"type":"string"}}},"required":["list"]}`))
	if err != nil {
		t.Fatal(err)
	}
	for value, want := range map[string]string{
		`{"list":["a",2]}`: "/list/1 must be string, and is integer", `{}`: `the answer has no "list"`,
		`x`: "it is not JSON, or not JSON alone", `{"list":[]} trailing`: "it is not JSON, or not JSON alone",
	} {
		if err := s.Check([]byte(value)); err == nil || err.Error() != want {
			t.Errorf("%s: %v", value, err)
		}
	}
	for _, text := range []string{`[]`, `true`, `{`, ``} {
		if _, err := Parse([]byte(text)); err == nil {
			t.Errorf("%q is a schema", text)
		}
	}
	if s, err = Parse([]byte(`{"$ref":"https://example.com/schema.json"}`)); err != nil || s.Check([]byte("1")) == nil {
		t.Errorf("a schema elsewhere matches: %v", err)
	}
}

// TestAttackWork: neither a schema nor an answer makes a comparison endless.
func TestAttackWork(t *testing.T) {
	t.Parallel()
	var doubling strings.Builder
	doubling.WriteString(`{"$ref":"#/$defs/d0","$defs":{`)
	for i := range 20 {
		fmt.Fprintf(&doubling, `"d%d":{"anyOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]},`, i, i+1, i+1)
	}
	doubling.WriteString(`"d20":false}}`)
	for name, tt := range map[string]struct{ schema, value string }{
		"a loop":                 {`{"$ref":"#"}`, `1`},
		"a loop of two":          {`{"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"}`, `1`},
		"doubling":               {doubling.String(), `1`},
		"many items, all unique": {`{"uniqueItems":true}`, "[" + strings.Repeat(`"a",[1],`, 1) + manyNumbers(100_000) + "]"},
		"a long enum of arrays":  {`{"items":{"enum":[[` + manyNumbers(5000) + `]]}}`, "[" + strings.Repeat("["+manyNumbers(4999)+",0],", 40) + "1]"},
	} {
		s, err := Parse([]byte(tt.schema))
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := s.Check([]byte(tt.value)); err == nil || name != "a long enum of arrays" && !errors.Is(err, ErrWork) {
			t.Errorf("%s: %v", name, err)
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("%s takes %v", name, took)
		}
	}
}

func manyNumbers(n int) string {
	var out strings.Builder
	for i := range n {
		if i > 0 {
			out.WriteByte(',')
		}
		fmt.Fprint(&out, i)
	}
	return out.String()
}

// FuzzCheck checks that no schema and no value crashes a comparison, and that its message is one line of bounded length.
func FuzzCheck(f *testing.F) {
	f.Add(`{"type":"object","properties":{"a":{"type":"string"}}}`, `{"a":1}`)
	f.Add(`{"$ref":"#/x/0","x":[{"enum":[{}]}]}`, `{}`)
	f.Add(`{"uniqueItems":true,"items":{"oneOf":[{"not":{}}]}}`, `[[],[],{"a":[1]}]`)
	f.Fuzz(func(t *testing.T, schema, value string) {
		s, err := Parse([]byte(schema))
		if err != nil {
			return
		}
		if err := s.Check([]byte(value)); err != nil && len(err.Error()) > 1024 {
			t.Errorf("%d bytes", len(err.Error()))
		} else if err == nil && !json.Valid([]byte(value)) {
			t.Errorf("%q matches %q", value, schema)
		}
	})
}
