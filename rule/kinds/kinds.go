// Package kinds lists all kinds of rules. A new one is a folder beside this one, and a line here.
package kinds

import (
	"encoding/json"
	"reflect"
	"strconv"

	"boxgate/rule"
	"boxgate/rule/clientcert"
	"boxgate/rule/forward"
	"boxgate/rule/header"
	"boxgate/rule/placeholder"
	"boxgate/rule/postgres"
	"boxgate/rule/query"
	"boxgate/rule/response"
	"boxgate/rule/sign"
	"boxgate/rule/ssh"
	"boxgate/rule/upstream"
)

// Compact is the kind whose member may stand for a whole entry, if that has only texts.
var Compact rule.Kind = header.Kind{}

// All are the kinds in the order in which `gateway headers list` prints them.
var All = []rule.Kind{
	Compact,
	placeholder.Kind{},
	query.Kind{},
	sign.Kind{},
	clientcert.Kind{},
	forward.Kind{},
	response.Kind{},
}

// Logins are the kinds that stand alone in an entry.
var Logins = []rule.LoginKind{
	postgres.Kind{},
	ssh.Kind{},
	upstream.Kind{},
}

// Login returns the kind of a login by its key; nil if there is none.
func Login(key string) rule.LoginKind {
	for _, k := range Logins {
		if k.Key() == key {
			return k
		}
	}
	return nil
}

// Members returns the members of a rule's document that kinds read, for the description of the API.
func Members() (fields []reflect.StructField) {
	for _, k := range All {
		fields = append(fields, member(k.Key(), k.Form(), k.Doc(), true))
		for _, m := range Further(k) {
			fields = append(fields, member(m.Key, m.Form, m.Doc, true))
		}
	}
	return fields
}

// Views returns the members of a rule as it is shown.
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

// Lines returns what `gateway headers list` prints of a kind in a rule that is shown with these members.
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

// Further returns the members that a kind reads besides the one of its key.
func Further(k rule.Kind) []rule.Member {
	if w, ok := k.(rule.Wide); ok {
		return w.Members()
	}
	return nil
}

// Shown returns all kinds, in the order in which `gateway headers list` prints them.
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
