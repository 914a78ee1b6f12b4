// Package gate is small enough to see what a mutant takes away.
package gate

// Open reports whether age may pass.
func Open(age int) bool {
	if age < 18 {
		return false
	}
	if age > 130 {
		return false
	}
	return true
}
