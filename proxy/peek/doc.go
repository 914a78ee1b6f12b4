// Package peek reads the first bytes of a connection without consuming them and classifies them. The policy routes the connection by the result.
package peek
