package mutation

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"reflect"
	"slices"
	"strings"
)

// editsOfDecl locates the blocks in the declaration named by f.
func (f File) editsOfDecl(s *Sources) (name string, edits []edit, err error) {
	d, err := s.declOf(f)
	if err != nil {
		return "", nil, err
	}
	for _, b := range f.Blocks {
		e, err := b.inDecl(d)
		if errors.Is(err, errNotFound) {
			err = fmt.Errorf("%w%s", err, s.describeOtherMatches(File{Path: f.Path, Decl: f.Decl, Blocks: []Block{b}}))
		}
		if err != nil {
			return "", nil, fmt.Errorf("%s %s: %w", d.src.name, f.Decl, err)
		}
		edits = append(edits, e)
	}
	return d.src.name, edits, nil
}

var errNotFound = errors.New("is not there")

// inDecl returns the edit for the only occurrence of the old text in a declaration, or for occurrence b.Nth.
func (b Block) inDecl(d decl) (edit, error) {
	patterns, err := parsePatterns(b.Old)
	if err != nil {
		return edit{}, err
	}
	found := d.find(patterns)
	old := strings.Join(strings.Fields(b.Old), " ")
	switch {
	case len(found) == 0:
		return edit{}, fmt.Errorf("%q %w%s", old, errNotFound, d.describeSimilar(b.Old))
	case b.Nth > len(found):
		return edit{}, fmt.Errorf("%q occurs %d times, not %d", old, len(found), b.Nth)
	case b.Nth == 0 && len(found) > 1:
		return edit{}, fmt.Errorf("%q occurs %d times: include more context, or begin with <<<< 1, <<<< 2", old, len(found))
	}
	at := found[max(0, b.Nth-1)]
	e := edit{at.from, at.to, strings.TrimSpace(b.New)}
	if bytes.HasPrefix(d.src.text[at.to:], []byte(",")) { // an element of a list
		e.text = strings.TrimSuffix(e.text, ",")
	}
	if e.text == "" {
		e.from, e.to = withLine(d.src.text, at.from, at.to)
	}
	return e, nil
}

// withLine extends a range to delete by a following comma, and to whole lines if they have no other text.
func withLine(text []byte, from, to int) (begin, end int) {
	if to < len(text) && text[to] == ',' {
		to++
	}
	begin, end = from, to
	for begin > 0 && (text[begin-1] == ' ' || text[begin-1] == '\t') {
		begin--
	}
	if begin > 0 && text[begin-1] == '\n' && end < len(text) && text[end] == '\n' {
		return begin, end + 1
	}
	return from, to
}

// pattern is a parsed old text: consecutive nodes of a list, or a single node.
type pattern []ast.Node

// parsePatterns returns every possible parse of text: an expression, statements, elements of a list, fields or case
// clauses.
func parsePatterns(text string) ([]pattern, error) {
	var all []pattern
	if e, err := parser.ParseExprFrom(token.NewFileSet(), "", text, parser.SkipObjectResolution); err == nil {
		all = append(all, pattern{e})
	}
	elements := strings.TrimSuffix(strings.TrimSpace(text), ",")
	first := errUnbalanced
	for _, r := range []struct {
		before, text, after string
		unwrap              func(ast.Decl) (pattern, bool)
	}{
		{"func _() {\n", text, "\n}", statements},
		{"var _ = T{\n", elements, ",\n}", elementsOf},
		{"func _() { switch {\n", text, "\n} }", clauses},
		{"func _() { select {\n", text, "\n} }", clauses},
		{"type _ struct {\n", text, "\n}", fields},
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "", "package p; "+r.before+r.text+r.after, parser.SkipObjectResolution)
		if err != nil && errors.Is(first, errUnbalanced) {
			first = err
		}
		if err != nil || len(f.Decls) != 1 {
			continue
		}
		if p, ok := r.unwrap(f.Decls[0]); ok && len(p) > 0 {
			all = append(all, p)
		}
	}
	if all == nil {
		return nil, fmt.Errorf("%q is neither an expression nor statements, elements, fields or cases: %w", text, first)
	}
	return all, nil
}

var errUnbalanced = errors.New("unbalanced")

// statements, elementsOf, clauses and fields extract the nodes of the text from the declaration in which parsePatterns
// wrapped it. ok is false if the text closed the wrapper early.
func statements(d ast.Decl) (p pattern, ok bool) {
	f, ok := d.(*ast.FuncDecl)
	if !ok {
		return nil, false
	}
	return toNodes(f.Body.List), true
}

func elementsOf(d ast.Decl) (p pattern, ok bool) {
	spec, ok := onlySpec[*ast.ValueSpec](d)
	if !ok || len(spec.Values) != 1 {
		return nil, false
	}
	lit, ok := spec.Values[0].(*ast.CompositeLit)
	if !ok {
		return nil, false
	}
	return toNodes(lit.Elts), true
}

func clauses(d ast.Decl) (p pattern, ok bool) {
	body, ok := statements(d)
	if !ok || len(body) != 1 {
		return nil, false
	}
	switch s := body[0].(type) {
	case *ast.SwitchStmt:
		return toNodes(s.Body.List), true
	case *ast.SelectStmt:
		return toNodes(s.Body.List), true
	}
	return nil, false
}

func fields(d ast.Decl) (p pattern, ok bool) {
	spec, ok := onlySpec[*ast.TypeSpec](d)
	if !ok {
		return nil, false
	}
	t, ok := spec.Type.(*ast.StructType)
	if !ok {
		return nil, false
	}
	return toNodes(t.Fields.List), true
}

// onlySpec returns the one specification of a declaration, if it is an S.
func onlySpec[S ast.Spec](d ast.Decl) (spec S, ok bool) {
	if g, isGen := d.(*ast.GenDecl); isGen && len(g.Specs) == 1 {
		spec, ok = g.Specs[0].(S)
	}
	return spec, ok
}

func toNodes[N ast.Node](list []N) pattern {
	p := make(pattern, len(list))
	for i, n := range list {
		p[i] = n
	}
	return p
}

// lists returns the node lists of n.
func lists(n ast.Node) []pattern {
	switch n := n.(type) {
	case *ast.BlockStmt:
		return []pattern{toNodes(n.List)}
	case *ast.CaseClause:
		return []pattern{toNodes(n.List), toNodes(n.Body)}
	case *ast.CommClause:
		return []pattern{toNodes(n.Body)}
	case *ast.CompositeLit:
		return []pattern{toNodes(n.Elts)}
	case *ast.CallExpr:
		return []pattern{toNodes(n.Args)}
	case *ast.FieldList:
		return []pattern{toNodes(n.List)}
	}
	return nil
}

// span is a range of offsets in a file.
type span struct{ from, to int }

// find returns the ranges in the declaration that match one of the patterns, in source order.
func (d decl) find(patterns []pattern) []span {
	var found []span
	add := func(p pattern) {
		s := span{d.src.offset(p[0].Pos()), d.src.offset(p[len(p)-1].End())}
		if !slices.Contains(found, s) {
			found = append(found, s)
		}
	}
	ast.Inspect(d.node, func(n ast.Node) bool {
		if n == nil {
			return false
		}
		for _, p := range patterns {
			if len(p) == 1 && same(p[0], n) {
				add(pattern{n})
			}
			if len(p) == 1 {
				continue
			}
			for _, list := range lists(n) {
				for i := 0; i+len(p) <= len(list); i++ {
					if slices.EqualFunc(p, list[i:i+len(p)], same) {
						add(list[i : i+len(p)])
					}
				}
			}
		}
		return true
	})
	slices.SortFunc(found, func(a, b span) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to)) })
	return found
}

// same reports whether two nodes are the same Go code, regardless of layout.
func same(a, b ast.Node) bool { return equal(reflect.ValueOf(a), reflect.ValueOf(b)) }

var (
	posType     = reflect.TypeFor[token.Pos]()
	commentType = reflect.TypeFor[*ast.CommentGroup]()
)

func equal(a, b reflect.Value) bool {
	if a.Type() != b.Type() {
		return false
	}
	switch a.Kind() {
	case reflect.Interface, reflect.Pointer:
		if a.Type() == commentType {
			return true
		}
		if a.IsNil() || b.IsNil() {
			return a.IsNil() == b.IsNil()
		}
		return equal(a.Elem(), b.Elem())
	case reflect.Slice:
		if a.Len() != b.Len() {
			return false
		}
		for i := range a.Len() {
			if !equal(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	case reflect.Struct:
		for i := range a.NumField() {
			if !equal(a.Field(i), b.Field(i)) {
				return false
			}
		}
		return true
	}
	if a.Type() == posType { // whether an ellipsis or parenthesis is present; its position does not matter
		return a.Interface().(token.Pos).IsValid() == b.Interface().(token.Pos).IsValid() //nolint:forcetypeassert // posType
	}
	return a.Interface() == b.Interface()
}

// describeSimilar describes the nodes of the declaration that are most similar to old.
func (d decl) describeSimilar(old string) string {
	type candidate struct {
		text  string
		alike float64
	}
	want := tokens(old)
	var all []candidate
	ast.Inspect(d.node, func(n ast.Node) bool {
		switch n.(type) {
		case ast.Expr, ast.Stmt:
			text := d.src.oneLine(n)
			if a := alike(want, tokens(text)); a >= 0.5 && !slices.ContainsFunc(all, func(c candidate) bool { return c.text == text }) {
				all = append(all, candidate{text, a})
			}
		}
		return n != nil
	})
	slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Compare(b.alike, a.alike) })
	var out strings.Builder
	for _, c := range all[:min(3, len(all))] {
		if len(c.text) > 160 {
			c.text = c.text[:160] + " …"
		}
		fmt.Fprintf(&out, "\n\tit has: %s", c.text)
	}
	return out.String()
}

// tokens counts the tokens of a text.
func tokens(text string) map[string]int {
	set := token.NewFileSet()
	var s scanner.Scanner
	s.Init(set.AddFile("", -1, len(text)), []byte(text), func(token.Position, string) {}, 0)
	count := map[string]int{}
	for {
		_, tok, lit := s.Scan()
		if tok == token.EOF {
			return count
		}
		if tok != token.SEMICOLON {
			count[cmp.Or(lit, tok.String())]++
		}
	}
}

// alike returns the share of tokens that two texts have in common, between 0 and 1.
func alike(a, b map[string]int) float64 {
	common, total := 0, 0
	for t, n := range a {
		common += 2 * min(n, b[t])
		total += n
	}
	for _, n := range b {
		total += n
	}
	return float64(common) / float64(max(1, total))
}
