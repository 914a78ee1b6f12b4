package document

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"boxgate/policy/name"
)

// Problem is an error or warning about a document.
type Problem struct {
	Pointer string `json:"pointer"` // RFC 6901 pointer into the document; "" is the whole document
	Message string `json:"message"` // a sentence, with the corrected form if it is obvious
}

// InvalidError contains all problems of a document.
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

// Problems collects problems, of which it keeps the first one for each pointer.
type Problems struct {
	List []Problem // in the order of Add
	at   map[string]bool
}

// Add adds a problem, unless there is one with the same pointer.
func (ps *Problems) Add(pointer, format string, args ...any) {
	if ps.at == nil {
		ps.at = map[string]bool{}
	}
	if ps.at[pointer] {
		return
	}
	ps.at[pointer] = true
	ps.List = append(ps.List, Problem{pointer, fmt.Sprintf(format, args...)})
}

// Err returns nil if there are no problems.
func (ps *Problems) Err() error {
	if len(ps.List) == 0 {
		return nil
	}
	return &InvalidError{ps.List}
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

// Pointer extends an RFC 6901 pointer by one key.
func Pointer(base, key string) string { return base + "/" + pointerEscapes.Replace(key) }

// Element extends an RFC 6901 pointer by one index.
func Element(base string, i int) string { return base + "/" + strconv.Itoa(i) }

// AddBelow adds the problems of a part of the document at a pointer. err may be nil.
func (ps *Problems) AddBelow(at string, err error) {
	if invalid, ok := errors.AsType[*InvalidError](err); ok {
		for _, p := range invalid.Problems {
			ps.Add(at+p.Pointer, "%s", p.Message)
		}
	}
}

// TooMany adds a problem if a list has more than most entries, and reports whether it does.
func (ps *Problems) TooMany(at string, n, most int) bool {
	if n > most {
		ps.Add(at, "has %d entries; the limit is %d", n, most)
	}
	return n > most
}

// Pattern reads the host pattern at a pointer.
func (ps *Problems) Pattern(at, s string) (name.Pattern, bool) {
	p, err := name.ParsePattern(s)
	if err == nil {
		return p, true
	}
	if name.MeansAddress(s) {
		ps.Add(at, "%s; addresses belong in the lists of CIDRs", err)
	} else {
		ps.Add(at, "%s", err)
	}
	return name.Pattern{}, false
}

// CIDR reads the range of addresses at a pointer.
func (ps *Problems) CIDR(at, s string) (netip.Prefix, bool) {
	p, err := name.ParseCIDR(s)
	if err == nil {
		return p, true
	}
	if _, nameErr := name.ParsePattern(s); nameErr == nil {
		ps.Add(at, "%s; names belong in the lists of domains", err)
	} else {
		ps.Add(at, "%s", err)
	}
	return netip.Prefix{}, false
}
