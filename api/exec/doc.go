// Package exec serves the commands that run in a box: exec, exec-stream, and what is remembered of them, runs and logs.
package exec
