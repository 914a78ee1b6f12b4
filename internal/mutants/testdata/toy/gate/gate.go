// Package gate is a minimal target for mutants.
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
