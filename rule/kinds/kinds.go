// Package kinds lists all kinds of rules. A new kind is a folder next to this one and a line here.
package kinds

import (
	"encoding/json"
	"reflect"
	"strconv"

	"boxgate/rule"
	"boxgate/rule/clientcert"
	"boxgate/rule/forward"
	"boxgate/rule/header"
	"boxgate/rule/legacytls"
	"boxgate/rule/lenient"
	"boxgate/rule/meter"
	"boxgate/rule/placeholder"
	"boxgate/rule/postgres"
	"boxgate/rule/query"
	"boxgate/rule/response"
	"boxgate/rule/sign"
	"boxgate/rule/ssh"
	"boxgate/rule/upstream"
)

// Compact is the kind that reads compact entries, whose values are all strings: the entry is its member.
var Compact rule.Kind = header.Kind{}

// All lists the kinds in the order of `gateway headers list`, without [Logins].
var All = []rule.Kind{
	Compact,
	placeholder.Kind{},
	query.Kind{},
	sign.Kind{},
	clientcert.Kind{},
	forward.Kind{},
	response.Kind{},
	legacytls.Upstream,
	legacytls.Clients,
	lenient.Kind{},
	meter.Kind{},
}

// Logins lists the kinds whose member is the only one of its entry.
var Logins = []rule.LoginKind{
	postgres.Kind{},
	ssh.Kind{},
	upstream.Kind{},
}

// Login returns the kind of a login by its key, or nil.
func Login(key string) rule.LoginKind {
	for _, k := range Logins {
		if k.Key() == key {
			return k
		}
	}
	return nil
}

// Members returns the members of kinds in a rule's document, for the description of the API.
func Members() (fields []reflect.StructField) {
	for _, k := range All {
		fields = append(fields, member(k.Key(), k.Form(), k.Doc(), true))
		for _, m := range Further(k) {
			fields = append(fields, member(m.Key, m.Form, m.Doc, true))
		}
	}
	return fields
}

// Views returns the members of kinds in rules as shown, for the description of the API.
func Views() (fields []reflect.StructField) {
	for _, k := range Shown() {
		form, doc := k.Form(), k.Doc()
		if v, ok := k.(rule.Viewed); ok {
			form, doc = v.View()
		}
		_, always := k.(rule.AlwaysShown)
		fields = append(fields, member(k.Key(), form, doc, !always))
		for _, m := range Further(k) {
			fields = append(fields, member(m.Key, m.Form, m.ViewDoc, true))
		}
	}
	return fields
}

// Lines returns the lines of a kind for `gateway headers list`, given the members of a rule as shown.
func Lines(k rule.Kind, shown map[string]json.RawMessage) (lines []string) {
	add := func(key string, line func(json.RawMessage) string) {
		if of, ok := shown[key]; ok && line != nil {
			if text := line(of); text != "" {
				lines = append(lines, text)
			}
		}
	}
	add(k.Key(), k.Line)
	for _, m := range Further(k) {
		add(m.Key, m.Line)
	}
	return lines
}

// Further returns the members of a kind in addition to the one of its key.
func Further(k rule.Kind) []rule.Member {
	if w, ok := k.(rule.Wide); ok {
		return w.Members()
	}
	return nil
}

// Shown returns all kinds in the order of `gateway headers list`.
func Shown() []rule.Kind {
	out := make([]rule.Kind, 0, len(All)+len(Logins))
	for _, k := range Logins {
		out = append(out, k)
	}
	return append(out, All...)
}

func member(key string, form reflect.Type, doc string, optional bool) reflect.StructField {
	tag := reflect.StructTag(`json:"` + key + `"`)
	if optional {
		tag = reflect.StructTag(`json:"` + key + `,omitempty"`)
	}
	if doc != "" {
		tag += reflect.StructTag(" doc:" + strconv.Quote(doc))
	}
	return reflect.StructField{Name: key, Type: form, Tag: tag}
}
