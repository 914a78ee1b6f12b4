package content

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/parser"
)

// Operation is one GraphQL operation that a server is asked to execute.
type Operation struct {
	Type   string   // query, mutation or subscription
	Name   string   // may be ""
	Fields []string // names of the root fields, each once, whatever their aliases and directives
	// Persisted is the ID or hash of an operation whose text the server has. Then Type and Fields are unknown.
	Persisted string
}

// Bounds of a document.
const (
	maxTokens = 8192
	maxFields = 1024 // root fields of an operation
)

const (
	errRequest    = flaw("the request is not a GraphQL request")
	errParameters = flaw("parameters of a GraphQL request are repeated, or in the query and the body")
	errDocument   = flaw("the GraphQL document has a syntax error, or is too large")
	errText       = flaw("the GraphQL document has characters that parsers treat differently")
	errFragments  = flaw("the GraphQL document lacks a fragment, or has two of a name")
	errOperation  = flaw("it is unclear which operation of the GraphQL document is executed")
	errPersisted  = flaw("a persisted query has several IDs, or another hash than the text with it")
)

// Keys of a request. Apollo identifies persisted operations by persistedQuery in the extensions, others by one of persistedKeys.
var (
	persistedKeys = []string{"id", "documentId", "doc_id", "queryId", "hash"}
	requestKeys   = append([]string{"query", "operationName", "variables", "extensions"}, persistedKeys...)
	// otherKeys identify persisted operations at single servers. They are flaws, as is every unknown key in a body.
	otherKeys = []string{"operationId", "operationHash", "queryHash", "documentHash", "sha256Hash", "persistedQuery", "persistedQueryId"}
)

// readGraphQL reads a request of GraphQL over HTTP. A GET without a document carries no operation.
func readGraphQL(h *Head, body []byte) ([]Operation, error) {
	query, found, err := parameters(h.Query)
	switch {
	case err != nil:
		return nil, err
	case h.Method != http.MethodPost && h.HasBody:
		return nil, errBodyOfGet
	case h.Method != http.MethodPost && !found:
		return nil, nil
	case h.Method != http.MethodPost:
		return readOperations([]value{query})
	case found:
		return nil, errParameters
	}
	media, err := h.mediaType()
	switch {
	case err != nil:
		return nil, err
	case media == "application/graphql":
		if !utf8.Valid(body) {
			return nil, errUTF8
		}
		return readOperations([]value{{kind: '{', keys: []string{"query"}, items: []value{{kind: '"', text: string(body)}}}})
	case media != "application/json":
		return nil, errType
	}
	doc, err := parseJSON(body)
	if err != nil {
		return nil, err
	}
	items, err := doc.batch()
	if err != nil {
		return nil, err
	}
	return readOperations(items)
}

// parameters returns the parameters of a request in the query of a URL, as a JSON object would have them. found reports whether there
// are any.
func parameters(query string) (v value, found bool, err error) {
	all, err := url.ParseQuery(query)
	if err != nil { // also because of ";", which some servers separate by
		return v, false, errParameters
	}
	v.kind = '{'
	for key, values := range all {
		base, _, _ := strings.Cut(strings.Trim(key, "? \x00\t\r\n"), "[")
		known := slices.Contains(requestKeys, key)
		similar := func(k string) bool { return strings.EqualFold(bare(k), bare(base)) }
		if !known && !slices.ContainsFunc(requestKeys, similar) && !slices.ContainsFunc(otherKeys, similar) {
			continue
		}
		item := value{kind: '"', text: values[0]}
		if !known || len(values) > 1 || !utf8.ValidString(item.text) {
			return v, false, errParameters
		}
		if key == "extensions" {
			if item, err = parseJSON([]byte(item.text)); err != nil {
				return v, false, err
			}
		}
		if key == "variables" {
			item.kind = '{' // irrelevant here
		}
		v.keys, v.items = append(v.keys, key), append(v.items, item)
	}
	return v, len(v.keys) > 0, nil
}

func readOperations(items []value) ([]Operation, error) {
	all := make([]Operation, 0, len(items))
	for i := range items {
		o, err := readOperation(&items[i])
		if err != nil {
			return nil, err
		}
		all = append(all, o)
	}
	return all, nil
}

func readOperation(v *value) (o Operation, err error) {
	if v.kind != '{' || !v.hasOnly(requestKeys...) {
		return o, errSpelling
	}
	text, name := v.get("query"), v.get("operationName")
	if !text.isAbsentOr('"') || !name.isAbsentOr('"') || !v.get("variables").isAbsentOr('{') || !v.get("extensions").isAbsentOr('{') {
		return o, errRequest
	}
	id, hash, err := persisted(v)
	switch {
	case err != nil:
		return o, err
	case text.kind != '"' && id == "":
		return o, errRequest
	case text.kind != '"':
		return Operation{Name: name.text, Persisted: id}, nil
	case id != "" && !hash:
		return o, errPersisted // some servers execute the text, others the ID
	case id != "":
		if sum := sha256.Sum256([]byte(text.text)); !strings.EqualFold(id, hex.EncodeToString(sum[:])) {
			return o, errPersisted
		}
	}
	return parseOperation(text.text, name.text)
}

// isAbsentOr reports whether a member is absent, null or of a kind.
func (v value) isAbsentOr(kind byte) bool { return v.kind == 0 || v.kind == 'n' || v.kind == kind }

// persisted returns the ID of a persisted operation, and whether it is the SHA-256 hash of the text.
func persisted(v *value) (id string, hash bool, err error) {
	for _, key := range persistedKeys {
		item := v.get(key)
		if item.kind == 0 || item.kind == 'n' {
			continue
		}
		if id != "" || item.kind != '"' && item.kind != '0' || item.text == "" {
			return "", false, errPersisted
		}
		id = item.text
	}
	extensions := v.get("extensions")
	if extensions.misspells("persistedQuery") {
		return "", false, errSpelling
	}
	query := extensions.get("persistedQuery")
	if query.kind == 0 || query.kind == 'n' {
		return id, false, nil
	}
	sum := query.get("sha256Hash")
	switch {
	case query.misspells("sha256Hash", "version"):
		return "", false, errSpelling
	case id != "" || sum.kind != '"' || sum.text == "":
		return "", false, errPersisted
	}
	return sum.text, true, nil
}

// parseOperation parses a document and returns the operation that a server executes for the name.
func parseOperation(text, name string) (o Operation, err error) {
	if isOddDocument(text) {
		return o, errText
	}
	doc, err := parser.ParseQueryWithTokenLimit(&ast.Source{Input: text}, maxTokens)
	if err != nil {
		return o, errDocument
	}
	fragments := make(map[string]*ast.FragmentDefinition, len(doc.Fragments))
	for _, f := range doc.Fragments {
		if fragments[f.Name] != nil {
			return o, errFragments
		}
		fragments[f.Name] = f
	}
	chosen, err := choose(doc.Operations, name)
	if err != nil {
		return o, err
	}
	r := roots{fragments: fragments, seen: map[string]bool{}, spread: map[string]bool{}}
	if err := r.add(chosen.SelectionSet); err != nil {
		return o, err
	}
	return Operation{Type: string(chosen.Operation), Name: chosen.Name, Fields: r.fields}, nil
}

// isOddDocument reports whether a text has characters that parsers may treat differently: control characters, line breaks other than
// LF and CR LF, where comments may end or go on, and BOMs, which are ignored or refused.
func isOddDocument(text string) bool {
	return strings.Contains(strings.ReplaceAll(text, "\r\n", "\n"), "\r") || strings.ContainsFunc(text, func(c rune) bool {
		switch c {
		case '\t', '\n', '\r':
			return false
		case '\u2028', '\u2029', '\ufeff', utf8.RuneError:
			return true
		}
		return c < ' ' || c >= 0x7f && c < 0xa0
	})
}

// choose returns the operation of a name (GraphQL, 6.1). A name is needed if there are several, and must be right if it is given.
func choose(all ast.OperationList, name string) (*ast.OperationDefinition, error) {
	var chosen *ast.OperationDefinition
	seen := map[string]bool{}
	for _, o := range all {
		if seen[o.Name] || o.Name == "" && len(all) > 1 {
			return nil, errOperation
		}
		seen[o.Name] = true
		if o.Name == name || name == "" && len(all) == 1 {
			chosen = o
		}
	}
	if chosen == nil {
		return nil, errOperation
	}
	return chosen, nil
}

// roots collects the root fields of an operation.
type roots struct {
	fragments map[string]*ast.FragmentDefinition
	spread    map[string]bool // fragments that were visited
	seen      map[string]bool
	fields    []string
}

func (r *roots) add(set ast.SelectionSet) error {
	for _, s := range set {
		switch s := s.(type) {
		case *ast.Field:
			if r.seen[s.Name] {
				continue
			}
			if len(r.fields) == maxFields {
				return errDocument
			}
			r.seen[s.Name] = true
			r.fields = append(r.fields, s.Name)
		case *ast.InlineFragment:
			if err := r.add(s.SelectionSet); err != nil {
				return err
			}
		case *ast.FragmentSpread:
			f := r.fragments[s.Name]
			if f == nil {
				return errFragments
			}
			if r.spread[s.Name] {
				continue
			}
			r.spread[s.Name] = true
			if err := r.add(f.SelectionSet); err != nil {
				return err
			}
		default:
			return errDocument
		}
	}
	return nil
}
