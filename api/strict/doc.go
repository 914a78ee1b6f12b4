// Package strict decodes JSON bodies exactly as their Go types declare them. An unknown, duplicate or mistyped field is
// an error with a JSON pointer, never dropped, and all problems of a body are reported together.
package strict
