// Package peek reads the first bytes of a connection without consuming them and classifies them. The result is the evidence
// by which the policy routes the connection.
package peek
