// Package harness runs the custom harness of a box: a command that receives a prompt and writes its agent's actions as
// events (box-sse-v1) to standard output. Its output is untrusted: it is bounded, checked and encoded again.
package harness
