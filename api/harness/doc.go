// Package harness runs the custom harness of a box: a command in the box that is given a prompt and writes what its agent does as
// events (box-sse-v1) to standard output. All that it writes is hostile input: bounded, checked and written anew.
package harness
