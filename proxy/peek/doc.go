// Package peek reads the first bytes of a connection, none of which it consumes, and says what they are: the evidence by which the
// policy routes the connection.
package peek
