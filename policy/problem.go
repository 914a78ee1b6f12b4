package policy

import "strings"

// Problem is one thing wrong with what was written, or worth a warning: where, and what to write instead.
type Problem struct {
	Pointer string `json:"pointer"` // RFC 6901 pointer into the document; "" is the whole document
	Message string `json:"message"` // a sentence, with the corrected form where one is plain
}

// InvalidError carries every problem of a document at once, in the order of the document.
type InvalidError struct {
	Problems []Problem
}

// Error lists the problems, one after the other.
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
