package policy

// Name is a host name in canonical form: lower case, no trailing dot, IDNA as punycode, every label 1 to 63 bytes, at
// most 253 in all. Only [ParseName] makes one, so a Name can be compared with == and used as a map key. The zero Name
// means "no name is known" and matches no pattern, not even "*".
type Name struct{ s string }

// String returns the canonical form, or "" for the zero Name.
func (n Name) String() string { return n.s }

// IsZero reports whether no name is known.
func (n Name) IsZero() bool { return n.s == "" }

// Pattern is a host pattern of a policy or header rule: a name, "*.name" (every depth below name, not name itself) or
// "*" (any name), each with an optional port. Only [ParsePattern] makes one.
type Pattern struct {
	name Name   // zero for "*"
	wild bool   // "*.name" or "*"
	port uint16 // 0: not given
	ok   bool   // made by ParsePattern; a zero Pattern matches nothing
}
