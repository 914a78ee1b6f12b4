// Package strict reads JSON bodies exactly as their Go types declare them: an unknown, duplicate or mistyped field is an error
// with a JSON pointer, never dropped, and all problems of a body are told at once.
package strict
