package policy

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Problem is one error or warning about a document: where it is, and what to write instead.
type Problem struct {
	Pointer string `json:"pointer"` // RFC 6901 pointer into the document; "" is the whole document
	Message string `json:"message"` // a sentence, with the corrected form where one is obvious
}

// InvalidError carries every problem of a document at once.
type InvalidError struct {
	Problems []Problem
}

// Error lists the problems.
func (e *InvalidError) Error() string {
	if len(e.Problems) == 0 {
		return "invalid"
	}
	parts := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		parts[i] = p.Message
		if p.Pointer != "" {
			parts[i] = p.Pointer + ": " + p.Message
		}
	}
	return strings.Join(parts, "; ")
}

// problems collects problems, one for each place: the first one found there.
type problems struct {
	list []Problem
	at   map[string]bool
	more int // entries that a list may have besides those of the policy itself
}

func (ps *problems) add(pointer, format string, args ...any) {
	if ps.at == nil {
		ps.at = map[string]bool{}
	}
	if ps.at[pointer] {
		return
	}
	ps.at[pointer] = true
	ps.list = append(ps.list, Problem{pointer, fmt.Sprintf(format, args...)})
}

// err returns nil if there are no problems.
func (ps *problems) err() error {
	if len(ps.list) == 0 {
		return nil
	}
	return &InvalidError{ps.list}
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

// pointer extends an RFC 6901 pointer by one key.
func pointer(base, key string) string { return base + "/" + pointerEscapes.Replace(key) }

// element extends an RFC 6901 pointer by one index.
func element(base string, i int) string { return base + "/" + strconv.Itoa(i) }

// addBelow adds the problems of a part of the document; nil has none.
func (ps *problems) addBelow(at string, err error) {
	if invalid, ok := errors.AsType[*InvalidError](err); ok {
		for _, p := range invalid.Problems {
			ps.add(at+p.Pointer, "%s", p.Message)
		}
	}
}
