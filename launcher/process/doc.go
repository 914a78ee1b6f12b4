// Package process manages the commands of boxes, which become children of this process when the OCI runtime exits: it
// copies their streams, waits for them and kills them.
package process
