// Package exec serves commands in a box: exec, exec-stream, code, code-stream, and their runs and logs.
package exec
