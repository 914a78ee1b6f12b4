// Package process looks after the commands of boxes, which the OCI runtime leaves to this process: it hands on their streams,
// waits for them and kills them.
package process
